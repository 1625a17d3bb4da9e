"""HF Trainer over a stream, resumed within the second pass: it begins the stream again.

python reproduce.py      # 1 where the resumed training takes other rows, 0 where not; one process, no GPU
"""

import sys
import tempfile

import torch
import transformers

ROWS, STEPS, STOP = 4, 10, 6


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return ({"row": row} for row in range(ROWS))


class Model(torch.nn.Module):
    """Notes the rows that it is trained on."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.rows = []

    def forward(self, row):
        self.rows += row.tolist()
        return {"loss": self.weight.sum()}


class Stop(transformers.TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop |= state.global_step == STOP


def rows(place, callbacks=(), **how):
    model = Model()
    arguments = transformers.TrainingArguments(
        output_dir=place,
        use_cpu=True,
        max_steps=STEPS,
        per_device_train_batch_size=1,
        remove_unused_columns=False,
        save_steps=STOP,
        report_to="none",
        disable_tqdm=True,
    )
    trainer = transformers.Trainer(model, arguments, train_dataset=Stream(), callbacks=list(callbacks))
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train(**how)
    return model.rows


with tempfile.TemporaryDirectory() as whole, tempfile.TemporaryDirectory() as place:
    due = rows(whole)
    found = rows(place, [Stop()]) + rows(place, resume_from_checkpoint=f"{place}/checkpoint-{STOP}")
print(f"transformers {transformers.__version__}, {ROWS} rows a pass, stopped after {STOP} of {STEPS} steps")
print(f"not stopped: {due}")
print(f"resumed:     {found}")
sys.exit(found != due)
