"""HF Trainer over a stream: the last, short window of a pass is trained in the next pass's first step.

python reproduce.py      # 1 where a step is made of two windows, 0 where each is one; one process, no GPU
"""

import sys
import tempfile

import torch
import transformers

ROWS, WINDOW = 3, 2


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return ({"row": row} for row in range(ROWS))


class Model(torch.nn.Module):
    """A number a row, so that a step's gradient says which rows it is made of, and how much each counts."""

    def __init__(self):
        super().__init__()
        self.numbers = torch.nn.Parameter(torch.zeros(ROWS))

    def forward(self, row):
        return {"loss": self.numbers[row].mean()}


class Steps(transformers.TrainerCallback):
    def __init__(self):
        self.found = []

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        self.found.append(model.numbers.grad.tolist())


steps = Steps()
with tempfile.TemporaryDirectory() as place:
    arguments = transformers.TrainingArguments(
        output_dir=place,
        use_cpu=True,
        max_steps=4,
        gradient_accumulation_steps=WINDOW,
        per_device_train_batch_size=1,
        max_grad_norm=0.0,
        remove_unused_columns=False,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    transformers.Trainer(Model(), arguments, train_dataset=Stream(), callbacks=[steps]).train()
weights = [sum(step) for step in steps.found]
print(f"transformers {transformers.__version__}, {ROWS} rows a pass, {WINDOW} a window")
print(f"what the rows of each step weigh together: {weights}")
sys.exit(any(abs(weight - 1) > 1e-6 for weight in weights))
