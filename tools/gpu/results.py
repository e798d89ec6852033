"""The results: counted, kept in one JSON file and one log from the first result on, and printed as one table at the end."""

import contextlib
import json
import os
import tempfile
import time
from typing import Any, Dict, Iterator, List, NamedTuple

LOG_BYTES_PER_RUN = 200_000


class Row(NamedTuple):
    part: str
    item: str  # the name by which --only chooses the item that this row belongs to; '' for rows of no item
    name: str
    outcome: str  # passed, failed, skipped or measured
    text: str
    passed: int
    failed: int
    skipped: int
    figures: Dict[str, Any]


def make_folder(folder: str) -> None:
    """Before any work: the folder for the results. RuntimeError when no file can be made there."""
    try:
        os.makedirs(folder, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise RuntimeError(f'no results can be written to the folder {os.path.abspath(folder)}: {error.strerror}. Name another one (--output)') from error


class Results:
    """REQUIRES: make_folder(folder)."""

    def __init__(self, folder: str, machine: Dict[str, Any]):
        self.folder = folder
        self.machine = machine
        self.rows: List[Row] = []
        self._item = ''
        with open(self._path('log'), 'w', encoding='utf-8'):
            pass
        self._write()

    @contextlib.contextmanager
    def of(self, item: str) -> Iterator[None]:
        """The rows that are added inside belong to `item`."""
        self._item = item
        try:
            yield
        finally:
            self._item = ''

    def passed(self, part: str, name: str, text: str, /, **figures: Any) -> None:
        self._add(Row(part, self._item, name, 'passed', text, 1, 0, 0, figures))

    def failed(self, part: str, name: str, text: str, /, **figures: Any) -> None:
        self._add(Row(part, self._item, name, 'failed', text, 0, 1, 0, figures))

    def skipped(self, part: str, name: str, why: str) -> None:
        self._add(Row(part, self._item, name, 'skipped', why, 0, 0, 1, {}))

    def measured(self, part: str, name: str, text: str, /, **figures: Any) -> None:
        """A figure: neither a pass nor a failure. A goal that is missed is said in the text."""
        self._add(Row(part, self._item, name, 'measured', text, 0, 0, 0, figures))

    def judged(self, part: str, name: str, good: bool, text: str, /, **figures: Any) -> None:
        (self.passed if good else self.failed)(part, name, text, **figures)

    def counted(self, part: str, name: str, cases: int, failed: int, skipped: List[str], text: str) -> None:
        """A test binary of several cases."""
        outcome = 'failed' if failed else 'passed' if cases else 'skipped'
        self._add(Row(part, self._item, name, outcome, text, cases, failed, len(skipped), {'skipped': skipped} if skipped else {}))

    def log(self, title: str, text: str) -> None:
        """The end of a long output is what tells why it failed, so that is kept."""
        with open(self._path('log'), 'a', encoding='utf-8') as file:
            file.write(f'\n===== {title}\n{text[-LOG_BYTES_PER_RUN:]}\n')

    def totals(self) -> str:
        return (f'{sum(row.passed for row in self.rows)} passed, {sum(row.failed for row in self.rows)} failed, '
                f'{sum(row.skipped for row in self.rows)} skipped')

    def any_failed(self) -> bool:
        return any(row.failed for row in self.rows)

    def table(self) -> str:
        return table([[row.part, row.name, row.outcome.upper() if row.outcome == 'failed' else row.outcome, row.text] for row in self.rows])

    def _path(self, ending: str) -> str:
        return os.path.join(self.folder, f'gpu_check.{ending}')

    def _add(self, row: Row) -> None:
        print(f'  {row.outcome.upper() if row.outcome == "failed" else row.outcome:9}{row.name}: {row.text}', flush=True)
        self.rows.append(row)
        self._write()

    def _write(self) -> None:
        whole = {'machine': self.machine, 'written': time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime()), 'totals': self.totals(),
                 'results': [row._asdict() for row in self.rows]}
        with open(self._path('json') + '.new', 'w', encoding='utf-8') as file:
            json.dump(whole, file, indent=1)
        os.replace(self._path('json') + '.new', self._path('json'))


def table(rows: List[List[str]]) -> str:
    """Columns as wide as they need; the last is free."""
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(len(rows[0]) - 1)] if rows else []
    return '\n'.join('  '.join([*(cell.ljust(width) for cell, width in zip(row, widths)), row[-1]]).rstrip() for row in rows)
