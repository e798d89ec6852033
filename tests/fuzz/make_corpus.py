#!/usr/bin/env python3
"""Writes the seed corpora: of store_fuzz one script for each opcode, and conversations written by hand; of bytes_fuzz
an input that each reader takes; of tls_fuzz a middle's deeds; of vocabulary_fuzz a small file of each kind of tokenizer; of documents_fuzz
lines and files; of chat_fuzz templates and conversations; of weights_fuzz files of weights, shapes and requests.

usage: tests/fuzz/make_corpus.py STORE_FOLDER BYTES_FOLDER VOCABULARY_FOLDER DOCUMENTS_FOLDER CHAT_FOLDER WEIGHTS_FOLDER TLS_FOLDER SECRETS_FOLDER
"""

import base64
import gzip
import json
import os
import struct
import sys


def text(value: bytes) -> bytes:
    return struct.pack('<Q', len(value)) + value


def texts(*values: bytes) -> bytes:
    return struct.pack('<Q', len(values)) + b''.join(map(text, values))


def launch_task(variables, arguments) -> bytes:
    body = b''.join(word + b'\0' for word in [b'30000', b'n1', b'/tmp', str(len(variables)).encode(), *variables, *arguments])
    return b'convene-launch-2 %d\n' % len(body) + body


VALIDATE = b'\0' + struct.pack('<I', 0x3C85F7CE)
K, V, Q = text(b'/k'), text(b'v'), text(b'/q')
ONE = struct.pack('<q', 1)
TWO = struct.pack('<q', 2)
REQUESTS = {
    'set': b'\x01' + K + V,
    'compare_set': b'\x02' + K + text(b'') + V,
    'get': b'\x03' + K,
    'add': b'\x04' + text(b'n') + ONE,
    'check': b'\x05' + texts(b'/k', b'/q'),
    'wait': b'\x06' + texts(b'/k'),
    'wait_two': b'\x06' + texts(b'/k', b'/q'),
    'wait_queue': b'\x06' + texts(b'/q'),
    'num_keys': b'\x07',
    'delete': b'\x08' + K,
    'append': b'\x09' + K + V,
    'multi_get': b'\x0a' + texts(b'/k', b'/none'),
    'multi_set': b'\x0b' + struct.pack('<q', 2) + K + V + text(b'/j') + text(b''),
    'cancel': b'\x0c',
    'ping': b'\x0d' + struct.pack('<I', 7),
    'push': b'\x0e' + Q + V,
    'pop': b'\x0f' + Q,
    'queue_len': b'\x10' + Q,
    'list_keys': b'\x11',
    'barrier': b'\x12' + text(b'/b') + TWO,
}
CONVERSATIONS = {
    'wake': [(0, 'wait'), (1, 'set'), (0, 'cancel'), (0, 'get')],
    'cancel_first': [(0, 'wait'), (0, 'cancel'), (1, 'set')],
    'consumers': [(0, 'wait_queue'), (1, 'wait_queue'), (2, 'push'), (2, 'push'), (0, 'pop'), (1, 'pop'), (1, 'pop')],
    'watchers': [(0, 'wait_two'), (1, 'push'), (1, 'set'), (1, 'queue_len')],
    'barrier': [(0, 'barrier'), (1, 'barrier'), (2, 'barrier')],
    'question_in_a_wait': [(0, 'wait'), (0, 'get'), (1, 'multi_set')],
}


def script(steps) -> bytes:
    """Steps of (connection, bytes), in pieces of up to 64 bytes."""
    pieces = []
    for peer, data in steps:
        for begin in range(0, len(data), 64):
            piece = data[begin:begin + 64]
            pieces.append(bytes([(len(piece) - 1) << 2 | peer]) + piece)
    return b''.join(pieces)


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    data = b''
    while value > 127:
        data += bytes([value & 127 | 128])
        value >>= 7
    return data + bytes([value])


def message(fields) -> bytes:
    """protobuf: {number: int, bytes or a float, which stands for a fixed64}."""
    data = b''
    for number, value in fields.items():
        if isinstance(value, float):
            data += varint(number << 3 | 1) + struct.pack('<Q', int(value))
        elif isinstance(value, int):
            data += varint(number << 3) + varint(value)
        else:
            data += varint(number << 3 | 2) + varint(len(value)) + value
    return data


def hello(host: bytes, **more: int) -> bytes:
    fields = {1: b'j', 2: host, 3: -1, 4: 1, 5: 1, 6: 2, 8: 2, 9: 1000, 10: 100, 12: 500, **{int(key[1:]): value for key, value in more.items()}}
    return message(fields)


def said(speaker: int, kind: int, body: bytes, epoch: int = 0) -> bytes:
    data = message({1: float(speaker + 1), 2: epoch, kind: body})
    return bytes([speaker, len(data)]) + data


def wait_ms(power: int) -> bytes:
    return bytes([240 + power])


def joined(speaker: int, **more: int) -> bytes:
    return said(speaker, 3, hello(b'node%d' % speaker, **more)) + said(speaker, 4, message({1: b'h', 2: 7}))


RESTART = b'\xe7'
FAILURE = message({1: message({1: 0, 2: 0, 3: b'node0', 4: 9, 5: 1, 7: b'exit code 1', 8: b'line', 9: 1})})
TALKS = {
    'success': joined(0) + joined(1) + wait_ms(8) + said(0, 7, b'', 1) + said(1, 7, b'', 1),
    'failures': joined(0) + joined(1) + b''.join(said(0, 6, FAILURE, epoch) + said(0, 4, b'', epoch) + said(1, 4, b'', epoch) for epoch in (1, 2, 3)),
    'resumed': joined(0) + joined(1) + RESTART + said(0, 3, hello(b'node0', f11=1, f13=1, f19=1)) + said(1, 3, hello(b'node1', f11=1, f13=1, f19=1)),
    'lost': joined(0) + joined(1) + said(0, 5, message({1: message({1: 5, 3: b'step'})}), 1) + wait_ms(10) + b'\xe9',
    'rivals': said(0, 3, hello(b'node0', f3=1)) + said(1, 3, hello(b'node1', f3=1)) + wait_ms(9) + RESTART + said(1, 8, message({1: b'bye', 2: 1})),
    'closed': joined(0) + wait_ms(7) + said(0, 7, b'', 1) + RESTART + joined(1) + joined(1, f11=9),
}
RECORD = message({1: hello(b'node0'), 2: 2, 4: 1, 5: 1, 6: message({1: b'node0', 2: 1.0, 3: -1, 4: 1, 5: 500, 9: 1}), 7: message({2: 1, 4: 1}), 8: 1,
                  13: 0, 16: message({1: 1}), 18: 1, 23: message({1: b'node0', 2: -1, 3: 1, 4: 5, 5: 1, 6: 30000, 7: b'why'})})
STORED_JOB = message({1: 1, 2: message({1: hello(b'node0')})})
PAGE = b'CONVPRG1' + struct.pack('<QqQII', 2, 5, 3600 * 10**9, 63, 0) + b'step'.ljust(24, b'\0') + struct.pack('<7QdII', *range(10, 17), 2.5, 1, 0)


def token_file(counted: bool) -> bytes:
    """Ours, of the tokens 1, 2, 3 in two documents. The fuzzer's program sets the checksums."""
    identity = struct.pack('<QiIII', 7, 0, 4, 2, 0) + b'byte' + b'/x'
    header = b'CNVTOKEN' + struct.pack('<IIqQIIQqQQQq', 3, 1, 3, 42, 256, int(counted), 0, 2, 0, 0, 0, len(identity)) + bytes(40)
    body = identity + bytes(-(len(header) + len(identity)) % 8) + b'\1\2\3' + bytes(5) + struct.pack('<qq', 1, 3)
    return header + body + (b'\5' if counted else b'')


def service_answer() -> bytes:
    """Two SRV records of DNS under one name."""
    def name(host: str) -> bytes:
        return b''.join(bytes([len(label)]) + label.encode() for label in host.split('.')) + b'\0'

    def record(priority: int, port: int, host: str) -> bytes:
        body = struct.pack('>HHH', priority, 5, port) + name(host)
        return b'\xc0\x0c' + struct.pack('>HHIH', 33, 1, 60, len(body)) + body

    return (struct.pack('>6H', 1, 0x8180, 1, 2, 0, 0) + name('_convene._tcp.x') + struct.pack('>HH', 33, 1) +
            record(1, 29400, 'a.x') + record(0, 29401, 'b.x'))


def sized(data: bytes) -> bytes:
    return bytes([len(data)]) + data


MEGATRON_INDEX = b'MMIDIDX\0\0' + struct.pack('<QBQQiiqqqqq', 1, 8, 2, 3, 2, 1, 0, 4, 0, 1, 2)
LLMC = struct.pack('<iii', 20240520, 1, 3) + bytes(1012) + struct.pack('<HHH', 1, 2, 3)
# By the number of the reader in bytes_fuzz.cc.
READ = {
    'port_http': (0, b'\x20GET /status?job=a%20b HTTP/1.1\r\nHost: h\r\n\r\nHEAD / HTTP/1.0\r\n\r\n'),
    'port_form': (0, b'\x20POST /login HTTP/1.1\r\nCookie: a=b; __Host-convene-0=1\r\nContent-Length: 15\r\n\r\npassword=a%20b+'
                     b'GET / HTTP/1.1\r\nAccept: text/html\r\nCookie: x\r\n\r\n'),
    'port_grpc': (0, b'\x05PRI * HTTP/2.0\r\n\r\n'),
    'journal_empty': (1, b'convene-journal 1\n'),
    'record': (2, RECORD),
    **{f'messages_{name}': (3, talk) for name, talk in TALKS.items()},
    'pages': (4, b'\x03' + b''.join(b'\x0a' + PAGE.replace(struct.pack('<q', 5), struct.pack('<q', step)) for step in range(5, 9)) + b'\xff' + PAGE),
    'error_torch': (5, b'{"message": {"message": "e\\nf", "extraInfo": {"py_callstack": "s", "timestamp": "123"}}}'),
    'error_short': (5, b'{"message": "e", "timestamp": 123}'),
    'words_run': (6, b'\0run\0--nnodes=1:2\0--rdzv-endpoint\0h:1\0--stop-grace=abort=1\0--redirects\0000:1,1:3\0PET_NPROC_PER_NODE=2\0x.py'),
    'words_torchrun': (6, b'\1--nnodes\0002\0--node_rank=1\0--master-addr=h\0--rdzv-conf=timeout=5,is_host=1\0-m\0x'),
    'conf': (7, b'\0join_timeout=90, last_call_timeout=0.5,keep_alive_interval=2,read_timeout=7,is_host=false,rank=1'),
    'timers': (9, b'{"version": 1, "pid": 7, "scope_id": "a#1", "expiration_time": 0.01, "signal": 9}\n'
                  b'{"version": 1, "pid": 8, "scope_id": "a#1", "expiration_time": 5.5, "signal": 0}\n'
                  b'{"version": 1, "pid": 8, "scope_id": "a#1", "expiration_time": -1, "signal": 0}\n'),
    'status': (8, message({1: b'j', 2: b'running', 3: 5})),
    'tokens_ours': (11, b'\0' + token_file(False)),
    'tokens_ours_counted': (11, b'\0' + token_file(True)),
    'tokens_megatron': (11, b'\1' + sized(MEGATRON_INDEX) + struct.pack('<HHH', 1, 2, 3)),
    'tokens_llmc': (11, b'\2' + LLMC),
    'tokens_nanotron': (11, b'\3\7' + sized(struct.pack('<QQ', 1, 3)) + sized(b'gpt2|2\n3\n3 T') + sized(b'\1\0\1') + struct.pack('<HHH', 1, 2, 3)),
    'tokens_nanotron_empty': (11, b'\3\2\0'),
    'tokens_state': (11, b'\4' + sized(bytes(128) + bytes(24)) + sized(b'') + sized(b'')
                     + b'token-file-state-3 0 0 0 0 3244421341483603138 1 256 1 42 24 8376124999220038186'),
    'services': (13, service_answer()),
    'hosts_file': (14, b'\x03n2:' + b'# ours\nn1 slots=2\nuser@n2 slots=8 max_slots=9\nn3:1\n'),
    'hosts_lsf': (14, b'\0n1 4 n2 4'),
    'hosts_slurm': (14, b'\0node[003-007,9],login'),
    'task': (15, b'\x05' + launch_task([b'A=b'], [b'--', b'x']) + b'.T'),
    'ledger': (16, b'\0\1j' + bytes([len(STORED_JOB)]) + STORED_JOB + b'\1\1x\1y'),
    'blend': (12, b'a.bin:0.7,{b,c}-*.jsonl:3e-1,x:y:2'),
    'schedule_1f1b': (10, b'0F0,0F1,,0B0,0F2,0B1,,0B2\n1F0,1B0,1F1,1B1,1F2,1B2\n'),
    'schedule_v': (10, b'0F0,3F0,3I0,3W0,0I0,0W0\r\n1F0,2F0,2I0,1I0,2W0,1W0\r\n'),
    'schedule_overlap': (10, b'0F0,1F0,(0F1;1B0)OVERLAP_F_B,0B0,1F1,1B1,0B1'),
    'schedule_forward': (10, b'0F0,0F1,2F0,2F1\n1F0,1F1'),
}




def json_bytes(value) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


TEXT = " Hello 123 it's \n\n caf\u00e9 \u4e2d <s>".encode() + b'\xf0\x9f'
CONFIG = json_bytes({'pat_str': r"'s| ?\p{L}+|\p{N}{1,3}|\s+|.", 'bos_token': {'content': '<s>'}, 'eos_token': '</s>', 'add_bos_token': True,
                     'added_tokens_decoder': {'300': {'content': '<s>'}, '301': {'content': '</s>'}}})
RANKS = b''.join(base64.b64encode(token) + b' %d\n' % (256 + i) for i, token in enumerate([b'el', b'lo', b'ell', b' H', b'123', b'hello']))
TEKKEN = json_bytes({'config': {'pattern': r'\s+|\S+', 'num_vocab_tokens': 258, 'default_vocab_size': 268, 'default_num_special_tokens': 10,
                                'version': 'v7'},
                     'special_tokens': [{'rank': 1, 'token_str': '<s>', 'is_control': True}, {'rank': 2, 'token_str': '</s>', 'is_control': True}],
                     'vocab': ['@'] + [{'rank': i, 'token_bytes': base64.b64encode(token).decode(), 'token_str': None}
                                       for i, token in enumerate([b'el', b'123'], 256)]})
BYTE_LEVEL = {'type': 'ByteLevel', 'add_prefix_space': False, 'trim_offsets': True, 'use_regex': True}
LETTERS = {letter: i for i, letter in enumerate("\u0120Helo123its'\u010acaf\u00c3\u00a9")}
TOKENIZER_JSON = json_bytes({
    'version': '1.0', 'added_tokens': [{'id': 40, 'content': '<s>', 'special': True, 'normalized': False, 'single_word': False, 'lstrip': False,
                                        'rstrip': True}],
    'normalizer': {'type': 'NFC'}, 'pre_tokenizer': BYTE_LEVEL, 'decoder': BYTE_LEVEL, 'post_processor': None,
    'model': {'type': 'BPE', 'vocab': {**LETTERS, 'el': 30, 'lo': 31}, 'merges': [['e', 'l'], ['l', 'o']]}})
METASPACE = {'type': 'Metaspace', 'replacement': '\u2581', 'prepend_scheme': 'first', 'split': True}
UNIGRAM_JSON = json_bytes({
    'version': '1.0', 'added_tokens': [], 'normalizer': {'type': 'Sequence', 'normalizers': [{'type': 'NFKC'}, {'type': 'Lowercase'}]},
    'pre_tokenizer': METASPACE, 'decoder': METASPACE, 'post_processor': None,
    'model': {'type': 'Unigram', 'unk_id': 0, 'vocab': [['<unk>', 0], ['\u2581', -2], ['hello', -3.5], ['l', -4], ['it', -5]]}})


def piece(content: str, score: float, kind: int) -> bytes:
    data = content.encode()
    body = b'\x0a' + varint(len(data)) + data + b'\x15' + struct.pack('<f', score) + b'\x18' + varint(kind)
    return b'\x0a' + varint(len(body)) + body


def sentencepiece(model_type: int) -> bytes:
    pieces = [('<unk>', 0, 2), ('<s>', 0, 3), ('</s>', 0, 3), ('\u2581', -1, 1), ('l', -2, 1), ('lo', -3, 1), ('He', -4, 1), ('12', -5, 4)]
    trainer = b'\x18' + varint(model_type)
    normalizer = b'\x0a\x08identity\x18\x01\x20\x01\x28\x01'
    return b''.join(piece(*each) for each in pieces) + b'\x12' + varint(len(trainer)) + trainer + b'\x1a' + varint(len(normalizer)) + normalizer


# By the number of the reader in vocabulary_fuzz.cc; 0xFF is between the parts.
VOCABULARIES = {
    'tiktoken': (0, CONFIG + b'\xff' + RANKS + b'\xff' + TEXT),
    'tekken': (1, TEKKEN + b'\xff' + TEXT),
    'json_bpe': (2, b'{"bos_token": "<s>", "add_bos_token": true}\xff' + TOKENIZER_JSON + b'\xff' + TEXT),
    'json_unigram': (2, b'\xff' + UNIGRAM_JSON + b'\xff' + TEXT),
    'sentencepiece_unigram': (3, bytes([len(TEXT)]) + TEXT + sentencepiece(1)),
    'sentencepiece_bpe': (3, bytes([len(TEXT)]) + TEXT + sentencepiece(2)),
    'pattern': (4, rb"(?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|\s+(?!\S)|[\w[.,]]+" + b'\xff' + TEXT),
    'pattern_gpt2': (4, rb"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+" + b'\xff' + TEXT),
    'pattern_slow': (4, rb'(a+)+b' + b'\xff' + b'a' * 40 + b'c'),
}


# zstd's frame of "one\ntwo\n", by `printf 'one\ntwo\n' | zstd --no-check`.
ZSTD = bytes.fromhex('28b52ffd2008410000') + b'one\ntwo\n'
LINE = json_bytes({'id': 1, 'a': {'text': 'in \u00e9', 'x': [1.5e3, None]}, 'text': 'a "text"\n\U0001f600'})
JOURNAL = b"""convene-prepare-journal 1
key 00000000000000ff
in_document 1
file 1
offset 2
line 3
documents 4
tokens 5
counted_tokens 6
text_bytes 7
duplicates 8
empty_documents 9
bad_lines 1
seen_documents 11
first_bad_line data: a, line 1: \\"x\\"
writer_state state
checksum 9c0e777ae583091a
"""
# By the number of the reader in documents_fuzz.cc.
DOCUMENTS = {
    'line': (0, LINE),
    'line_escapes': (0, rb'{"text": "\u00e9\ud83d\ude00\\\/\b", "b": [{}, [], true, false, null, -1.5e-3]}'),
    'line_deep': (0, b'{"a": ' + b'[' * 600),
    'journal': (1, JOURNAL),
    'lines': (2, LINE + b'\r\n\n' + b'x' * 80 + b'\nlast'),
    'lines_gzip': (2, gzip.compress(LINE + b'\n', mtime=0) + gzip.compress(b'two\n', mtime=0)),
    'lines_zstd': (2, ZSTD),
    'separated': (3, b'one--two-\n---three'),
    'parts': (4, b'one two three.\nfour five\nsix seven eight nine\nten'),
    'parquet': (4, b'PAR1'),
}


CHAT = b'{"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": " U </s>"}, {"role": "assistant", "content": "A \xc3\xa9"}]}'
SHARE_GPT = b'{"conversations": [{"from": "human", "value": "U"}, {"from": "gpt", "value": "A", "weight": 1}], "tools": "[1]"}'
GROWING = b"{% for m in messages %}<|im_start|>{{ m.role + '\\n' + m['content']|trim }}<|im_end|>\n{% endfor %}" \
          b"{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
GENERATION = b"{%- for m in messages -%}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}</s>{% endgeneration %}" \
             b"{% elif loop.first and m.content is string %}{{ m.content }}{% else %}{{ m|tojson }}{% endif %}{% endfor %}"
LANGUAGE = b"{# c #}{% set ns = namespace(a=1, l=[]) %}{% macro m(a, b='x') %}{{ a ~ b }}{% endmacro %}{% for k, v in d.items() if v %}" \
           b"{% set ns.a = ns.a + loop.index * 2 %}{{ m(k, b=v) }}{% if loop.last %}{% break %}{% endif %}{% else %}-{% endfor %}" \
           b"{% set t | upper %} {{ ns.a ** 2 // 3 }} {% endset %}{{ t[1:-1] }}{{ (l|map('string')|join(','))[::-1] if l is defined else none }}" \
           b"{{ s.split(',')[0].strip() in s and not l|length > 3 }}{{ {'a': [1.5, none, (1,)]}|tojson(indent=1) }}{{ l|sort|last|default('z') }}"

# By the number of the reader in chat_fuzz.cc.
CHATS = {
    'template': (0, LANGUAGE + b'\xff{"d": {"a": 1, "b": "x"}, "l": [3, 1, 2], "s": " a,b"}'),
    'template_grows': (0, b"{% set n = namespace(t='ab') %}{% for i in range(99) %}{% set n.t = n.t + n.t %}{% endfor %}\xff{}"),
    'template_recursion': (0, b'{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}\xff{}'),
    **{f'named_{number}': (1, bytes([number]) + CHAT) for number in range(7)},
    'named_last': (1, bytes([7]) + CHAT),
    'share_gpt': (1, b'\x01' + SHARE_GPT),
    'completion': (1, b'\x00{"prompt": "P ", "completion": "C"}'),
    'chosen': (1, b'\x15{"prompt": "P ", "chosen": "C", "rejected": "D"}'),
    'rejected': (1, b'\x2a{"chosen": [], "rejected": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}'),
    'folder_growing': (2, b'\x00' + GROWING + b'\xff' + CHAT),
    'folder_generation': (2, b'\x01' + GENERATION + b'\xff' + CHAT),
    'folder_all': (2, b'\x02' + GENERATION + b'\xff' + SHARE_GPT),
}




def safetensors(**shapes) -> bytes:
    header, end = {}, 0
    for name, (kind, size, shape) in shapes.items():
        begin, count = end, 1
        for axis in shape:
            count *= axis
        end += count * size
        header[name] = {'dtype': kind, 'shape': shape, 'data_offsets': [begin, end]}
    raw = json.dumps({'__metadata__': {'format': 'pt'}, **header}).encode()
    return struct.pack('<Q', len(raw)) + raw + bytes(end)


def gguf(facts, tensors) -> bytes:
    """facts: key, type, bytes of the value; tensors: name, sizes, type, bytes."""
    raw = b'GGUF' + struct.pack('<IQQ', 3, len(tensors), len(facts))
    for key, kind, value in facts:
        raw += text(key) + struct.pack('<I', kind) + value
    data = b''
    for name, sizes, kind, values in tensors:
        raw += text(name) + struct.pack('<I', len(sizes)) + struct.pack(f'<{len(sizes)}Q', *sizes) + struct.pack('<IQ', kind, len(data))
        data += values + bytes(-len(values) % 32)
    return raw + bytes(-len(raw) % 32) + data


SHAPE = {'vocab_size': 64, 'hidden_size': 16, 'intermediate_size': 32, 'num_hidden_layers': 2, 'num_attention_heads': 4, 'num_key_value_heads': 2,
         'head_dim': 4}
ROPE = {'rope_type': 'llama3', 'rope_theta': 5e5, 'factor': 8.0, 'low_freq_factor': 1.0, 'high_freq_factor': 4.0, 'original_max_position_embeddings': 8192}


def config(family: str, **more) -> bytes:
    return json.dumps({'model_type': family, **SHAPE, **more}).encode()


VOCABULARY = [(b'tokenizer.ggml.model', 8, text(b'gpt2')), (b'tokenizer.ggml.pre', 8, text(b'smollm')),
              (b'tokenizer.ggml.tokens', 9, struct.pack('<I', 8) + texts(b'<s>', b'a', b'b', b'ab')),
              (b'tokenizer.ggml.token_type', 9, struct.pack('<IQ4i', 5, 4, 3, 1, 1, 1)),
              (b'tokenizer.ggml.merges', 9, struct.pack('<I', 8) + texts(b'a b')), (b'tokenizer.ggml.eos_token_id', 4, struct.pack('<I', 0)),
              (b'tokenizer.ggml.add_bos_token', 7, b'\1'), (b'general.alignment', 4, struct.pack('<I', 32)), (b'real', 6, struct.pack('<f', 1e-5))]
SMALL = {**SHAPE, 'vocab_size': 4, 'hidden_size': 2, 'intermediate_size': 2, 'num_hidden_layers': 1, 'num_attention_heads': 1, 'num_key_value_heads': 1,
         'head_dim': 2, 'tie_word_embeddings': True, 'model_type': 'llama'}
SMALL_TENSORS = {'model.embed_tokens.weight': ('F32', 4, [4, 2]), 'model.norm.weight': ('F16', 2, [2]),
                 **{f'model.layers.0.{name}_layernorm.weight': ('F32', 4, [2]) for name in ('input', 'post_attention')},
                 **{f'model.layers.0.self_attn.{name}_proj.weight': ('BF16', 2, [2, 2]) for name in 'qkvo'},
                 **{f'model.layers.0.mlp.{name}_proj.weight': ('BF16', 2, [2, 2]) for name in ('gate', 'up', 'down')}}
INDEX = json.dumps({'metadata': {'total_size': 1}, 'weight_map': {name: 'model.safetensors' for name in SMALL_TENSORS}}).encode()
ADAPTER = {f'base_model.model.model.layers.0.self_attn.q_proj.lora_{half}.weight': ('F32', 4, shape) for half, shape in (('A', [1, 2]), ('B', [2, 1]))}


def folder(*parts: bytes) -> bytes:
    return b'\xff'.join(parts)


def question(number: int, right: int, context, endings) -> bytes:
    numbers = [65535, 0, number, right, len(endings), len(context), *context]
    for ending in endings:
        numbers += [len(ending), *ending]
    return struct.pack(f'<{len(numbers)}H', *numbers)


# By the number of the reader in weights_fuzz.cc.
WEIGHTS = {
    'safetensors': (0, safetensors(a=('F32', 4, [2, 3]), b=('BF16', 2, [4]), c=('I64', 8, []), d=('F16', 2, [0, 5]))),
    'config_llama': (1, config('llama', rope_scaling=ROPE, tie_word_embeddings=True)),
    'config_llama5': (1, config('llama', rope_parameters=ROPE, architectures=['LlamaForCausalLM'])),
    'config_qwen3': (1, config('qwen3', sliding_window=None, use_sliding_window=False)),
    'config_gpt2': (1, json.dumps({'model_type': 'gpt2', 'n_layer': 2, 'n_embd': 16, 'n_head': 4}).encode()),
    'config_gemma2': (1, config('gemma2', query_pre_attn_scalar=4, sliding_window=8)),
    'config_mixtral': (1, config('mixtral', num_local_experts=4, num_experts_per_tok=2)),
    'config_deepseek': (1, config('deepseek_v3', n_routed_experts=4, num_experts_per_tok=2, n_group=2, topk_group=1, moe_intermediate_size=8,
                                  q_lora_rank=8, kv_lora_rank=8, qk_nope_head_dim=4, qk_rope_head_dim=4, v_head_dim=4, first_k_dense_replace=1)),
    'config_no_groups': (1, config('deepseek_v3', n_routed_experts=4, num_experts_per_tok=2, n_group=0, topk_group=1, moe_intermediate_size=8,
                                   kv_lora_rank=8, qk_nope_head_dim=4, qk_rope_head_dim=4, v_head_dim=4)),
    'config_gpt_oss': (1, config('gpt_oss', num_local_experts=4, num_experts_per_tok=2, sliding_window=8, swiglu_limit=7.0, attention_bias=True,
                                 rope_parameters={'rope_type': 'yarn', 'factor': 4.0, 'truncate': False})),
    'peft': (6, json.dumps({'peft_type': 'LORA', 'r': 8, 'lora_alpha': 16, 'lora_dropout': 0.05, 'use_rslora': True, 'bias': 'none',
                            'base_model_name_or_path': 'base', 'target_modules': ['q_proj'], 'rank_pattern': {}}).encode()),
    'folder': (8, folder(json.dumps(SMALL).encode(), b'', safetensors(**SMALL_TENSORS))),
    'folder_index': (8, folder(json.dumps(SMALL).encode(), INDEX, safetensors(**SMALL_TENSORS))),
    'adapter': (9, folder(json.dumps({'peft_type': 'LORA', 'r': 1, 'target_modules': ['q_proj']}).encode(), safetensors(**ADAPTER))),
    'choices': (7, struct.pack('<256i', 20240522, 1, 2, 40, *[0] * 252) + question(0, 1, [5, 6], [[1], [2, 3]]) + question(1, 0, [7], [[1], [2], [3]])),
    'llmc': (5, struct.pack('<8i', 20240326, 3, 16, 70, 2, 2, 8, 128)),
    'shape': (2, b'layers 16 hidden 2048 ffn 8192 heads 32/8x64 vocabulary 128256 theta 500000 scaled 32 (1 to 4 of 8192) epsilon 1e-05 tied'),
    'gguf': (3, gguf(VOCABULARY, [(b'f32', [3, 2], 0, bytes(24)), (b'q8', [32], 8, bytes(34)), (b'q4', [64, 1], 3, bytes(40)), (b'half', [1], 1, bytes(2))])),
    'completion': (4, b'{"prompt": ["a", [1, 2]], "max_tokens": 3, "n": 2, "stop": ["x"], "stream": true, "stream_options": {"include_usage": true}}'),
    'conversation': (4, b'{"messages": [{"role": "user", "content": "a"}], "temperature": 0, "top_p": 0.5, "seed": 3, "logprobs": false}'),
}

# A middle's deeds, in turns to the server and to the client (0 carry, 1 change, 2 drop, 3 twice, 4 forge, 5 in small steps); a stranger's bytes.
TLS_HELLO = bytes.fromhex('16030100300100002c0303') + bytes(32) + bytes.fromhex('00000213010100 0001 00'.replace(' ', ''))
TLS = {
    'reader': bytes([2]), 'reader_changed': bytes([2, 0, 1, 0, 60, 1]),
    'carry': bytes([0]), 'small_steps': bytes([0, 5, 5, 5, 5, 5, 5]), 'changed_hello': bytes([0, 1, 0, 40, 7]), 'changed_answer': bytes([0, 0, 1, 0, 60, 1]),
    'changed_data': bytes([0, 0, 0, 0, 0, 1, 0, 9, 9]), 'dropped': bytes([0, 0, 2, 30]), 'twice': bytes([0, 3]), 'twice_data': bytes([0, 0, 0, 0, 0, 3]),
    'forged': bytes([0, 0, 4, 5]) + b'\x15\x03\x03\x00\x02', 'stranger_server': bytes([1, 0, 255]) + TLS_HELLO, 'stranger_client': bytes([1, 1, 3]) + TLS_HELLO,
}

# By the number of the reader in secrets_fuzz.cc.
TOKEN = b'0123456789abcdef0123456789abcdef\n'
OUR_KEY = message({1: message({2: message({1: b'convene/leader', 2: 3, 5: b'd', 6: 7})})})
SECRETS = {
    'token': (0, b'\0' + TOKEN), 'kept': (0, b'\1r' + TOKEN + b'r\n'), 'token_space': (0, b'\0' + TOKEN[:20] + b' ' + TOKEN),
    'cookie': (1, b'\0\x17__Host-convene-0=1; a=b'), 'guesses': (1, b'\2\3abc' * 11), 'basic': (1, b'\4\x0aBasic YTpi\5\x08Bearer x'),
    'applied': (2, message({1: message({3: 9}), 2: 1})), 'ours': (2, message({2: 0, 3: OUR_KEY})),
    'fenced': (2, message({3: OUR_KEY}) + message({3: message({1: message({2: message({1: b'convene/counter', 5: b'7 1'})})})})),
    'form': (4, b'\x20POST /login HTTP/1.1\r\nContent-Length: 15\r\n\r\npassword=a%20b+GET / HTTP/1.1\r\nAccept: text/html\r\nCookie: a=b; c\r\n\r\n'),
    'leads': (3, b'\0\0\0\1\7\0\1\7\1\1\4\1\1\4'), 'loses': (3, b'\1\x80\x14\0\1\1\x07\0\xff\0\1\4\0\x80'),
}


def write_all(folder: str, scripts) -> None:
    os.makedirs(folder, exist_ok=True)
    for name, data in scripts.items():
        with open(os.path.join(folder, name), 'wb') as file:
            file.write(data)


def main() -> int:
    scripts = {name: script([(0, VALIDATE + REQUESTS['set'] + request)]) for name, request in REQUESTS.items()}
    for name, steps in CONVERSATIONS.items():
        scripts[f'talk_{name}'] = script([(peer, VALIDATE) for peer in range(3)] + [(peer, REQUESTS[what]) for peer, what in steps])
    write_all(sys.argv[1], scripts)
    write_all(sys.argv[2], {name: bytes([reader]) + data for name, (reader, data) in READ.items()})
    write_all(sys.argv[3], {name: bytes([reader]) + data for name, (reader, data) in VOCABULARIES.items()})
    write_all(sys.argv[4], {name: bytes([reader]) + data for name, (reader, data) in DOCUMENTS.items()})
    write_all(sys.argv[5], {name: bytes([reader]) + data for name, (reader, data) in CHATS.items()})
    write_all(sys.argv[6], {name: bytes([reader]) + data for name, (reader, data) in WEIGHTS.items()})
    write_all(sys.argv[7], TLS)
    write_all(sys.argv[8], {name: bytes([reader]) + data for name, (reader, data) in SECRETS.items()})
    return 0


if __name__ == '__main__':
    sys.exit(main())
