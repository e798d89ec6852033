"""Scripts of Hugging Face's Trainer, accelerate and Lightning as people write them: the same losses without a kill, after one warm, and when a
second run begins warm.

Needs these packages in the environment of tests: tools/torch_environment --transformers.
"""

import glob
import json
import os
import shutil
import signal
import unittest

from tests.support import torch_environment
from tests.support.convene_testing import environment_of, processes_with, wait_until
from tests.support.torch_testing import CONVENE, TorchTestCase, need_torch

# Each script: FOLDER for its checkpoints, RESULT for its losses. It rests at step 6 until the file PAUSE exists, as with a slow disk.
COMMON = '''
import glob, json, os, sys, time
import torch
FOLDER, RESULT, PAUSE = sys.argv[1:]


def rest(step):
    while step == 6 and not os.path.exists(PAUSE):
        time.sleep(0.01)


def tell(model, losses):
    """The losses of this run's last steps, and all parameters in one number."""
    if os.environ['RANK'] == '0':
        with open(RESULT, 'w', encoding='ascii') as out:
            json.dump([losses[-2:], sum(p.detach().double().abs().sum().item() for p in model.parameters()), os.environ['TORCHELASTIC_RESTART_COUNT']], out)


def leave():
    """Now and then a Python that ends while threads of PyTorch still run is aborted (pytorch/pytorch#190489): this one ends at once."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        x = torch.randn(8, generator=torch.Generator().manual_seed(index))
        return x, x.sum(dim=0, keepdim=True).sin()


def network():
    torch.manual_seed(5)
    return torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Dropout(0.1), torch.nn.Linear(32, 1))
'''

TRAINER = COMMON + '''
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint


class Tokens(Samples):
    def __getitem__(self, index):
        tokens = torch.randint(0, 64, (12,), generator=torch.Generator().manual_seed(index))
        return {'input_ids': tokens, 'labels': tokens}


class Rest(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        rest(state.global_step)


def main():
    arguments = TrainingArguments(output_dir=FOLDER, use_cpu=True, max_steps=10, per_device_train_batch_size=4, save_steps=4, logging_steps=1,
                                  report_to=[], disable_tqdm=True, seed=3)
    torch.manual_seed(5)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2))
    trainer = Trainer(model=model, args=arguments, train_dataset=Tokens(), callbacks=[Rest()])
    trainer.train(resume_from_checkpoint=get_last_checkpoint(FOLDER) if os.path.isdir(FOLDER) else None)
    tell(model, [entry['loss'] for entry in trainer.state.log_history if 'loss' in entry])


if __name__ == '__main__':
    main()
    leave()
'''

ACCELERATE = COMMON + '''
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration


def main():
    # Else the order of the samples after load_state is another one.
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True))
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader = torch.utils.data.DataLoader(Samples(), batch_size=4, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    done = sorted(glob.glob(FOLDER + '/*.done'))
    if done:
        accelerator.load_state(done[-1][:-len('.done')])
    step, losses = len(done) * len(loader), []
    for epoch in range(len(done), 3):
        loader.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            losses.append(accelerator.reduce(loss.detach()).item())
            step += 1
            rest(step)
        accelerator.save_state(f'{FOLDER}/{epoch}')
        accelerator.wait_for_everyone()
        if accelerator.is_main_process:
            open(f'{FOLDER}/{epoch}.done', 'w').close()
    tell(accelerator.unwrap_model(model), losses)
    accelerator.end_training()


if __name__ == '__main__':
    main()
    leave()
'''

LIGHTNING = COMMON + '''
import pytorch_lightning as lightning
from pytorch_lightning.callbacks import Callback, ModelCheckpoint


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.network = network()
        self.network[2].p = 0.0  # Its checkpoints hold no state of the random generators.
        self.losses = []

    def training_step(self, batch, _):
        loss = torch.nn.functional.mse_loss(self.network(batch[0]), batch[1])
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)


class Rest(Callback):
    def on_train_batch_end(self, trainer, *_):
        rest(trainer.global_step)


def main():
    saver = ModelCheckpoint(dirpath=FOLDER, save_top_k=-1, every_n_epochs=1, filename='{epoch:03d}')
    trainer = lightning.Trainer(accelerator='cpu', devices=2, strategy='ddp', max_epochs=3, callbacks=[saver, Rest()], logger=False,
                                enable_progress_bar=False, enable_model_summary=False)
    lightning.seed_everything(5)
    model = Module()
    saved = sorted(glob.glob(FOLDER + '/*.ckpt'))
    trainer.fit(model, torch.utils.data.DataLoader(Samples(), batch_size=4), ckpt_path=saved[-1] if saved else None)
    tell(model, model.losses)


if __name__ == '__main__':
    main()
    leave()
'''


def setUpModule():
    need_torch()


def need(package):
    if not glob.glob(f"{torch_environment.VENV}/lib/python3*/site-packages/{package}"):
        raise unittest.SkipTest(f"SKIPPED: no {package} in {torch_environment.VENV} (tools/torch_environment --transformers brings it)")


class TorchFrameworksTest(TorchTestCase):

    def train(self, name, script, *flags):
        return self.start_torch(CONVENE, "run", "--standalone", "--nproc-per-node", 2, "--max-restarts", 1, *flags, script, self.path(f"{name}.saved"),
                                self.path(f"{name}.json"), self.path(f"{name}.go"), log=f"{name}.log")

    def go(self, name):
        with open(self.path(f"{name}.go"), "w", encoding="ascii"):
            pass

    def result(self, name):
        with open(self.path(f"{name}.json"), encoding="ascii") as file:
            return json.load(file)

    def has_all_spares(self, job, imports):
        """After the imports of the script's start, and where `imports` is 2 after those of its first steps."""
        parts = self.output(job).split("the parent of warm workers has imported")
        return len(parts) > imports and "spares that are ready to become workers: 2" in parts[-1]

    def worker(self, rank):
        found, = [pid for pid in processes_with(self.marker) if environment_of(pid).get("RANK") == str(rank)]
        return found

    def check(self, package, text, imports=2):
        need(package)
        script = self.script("train.py", text)
        self.go("whole")
        self.finish(self.train("whole", script), 200)
        job = self.train("warm", script, "--warm-workers", "auto")
        wait_until(lambda: self.has_all_spares(job, imports) and os.path.isdir(self.path("warm.saved")), 200, lambda: f"spares in\n{self.output(job)}")
        os.kill(self.worker(1), signal.SIGKILL)
        wait_until(lambda: "workers start from spares" in self.output(job), 60, lambda: f"the next start in\n{self.output(job)}")
        self.go("warm")
        said = self.finish(job, 200)
        self.assert_nothing_left()
        self.assertIn("2 of 2 workers start from spares", said)
        (losses, weights, restarts), (same_losses, same_weights, restarted) = self.result("whole"), self.result("warm")
        self.assertEqual((restarts, restarted), ("0", "1"))
        self.assertEqual((losses, weights), (same_losses, same_weights))
        self.check_second_run(script, self.result("whole"))

    def check_second_run(self, script, whole):
        """The same command once more, from the start: its first start is warm."""
        shutil.rmtree(self.path("warm.saved"))
        os.remove(self.path("warm.log"))
        said = self.finish(self.train("warm", script, "--warm-workers", "auto"), 200)
        self.assert_nothing_left()
        self.assertIn("the first start waits", said)
        self.assertIn("2 of 2 workers start from spares", said)
        self.assertNotIn("start cold", said)
        self.assertEqual(self.result("warm"), whole, said)

    def test_a_script_with_the_trainer_of_transformers(self):
        self.check("transformers", TRAINER)

    def test_a_script_with_accelerate(self):
        self.check("accelerate", ACCELERATE)

    def test_a_script_with_lightning(self):
        # It sets a variable before it imports the last modules, so these are imported cold.
        self.check("pytorch_lightning", LIGHTNING, imports=1)


if __name__ == "__main__":
    unittest.main()
