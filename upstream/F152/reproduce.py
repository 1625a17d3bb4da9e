"""HF Trainer with rows grouped by length, resumed within the second epoch: it takes other rows.

python reproduce.py      # 1 where the resumed training takes other rows, 0 where not; one process, no GPU
"""

import sys
import tempfile

import torch
import transformers

ROWS, EPOCHS, STOP = 8, 2, 11


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
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=1,
        train_sampling_strategy="group_by_length",
        remove_unused_columns=False,
        save_steps=STOP,
        report_to="none",
        disable_tqdm=True,
    )
    trainer = transformers.Trainer(
        model,
        arguments,
        data_collator=lambda batch: {"row": torch.tensor([each["row"] for each in batch])},
        train_dataset=[{"row": row, "input_ids": [0] * (1 + row % 3)} for row in range(ROWS)],
        callbacks=list(callbacks),
    )
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train(**how)
    return model.rows


with tempfile.TemporaryDirectory() as whole, tempfile.TemporaryDirectory() as place:
    due = rows(whole)
    found = rows(place, [Stop()]) + rows(place, resume_from_checkpoint=f"{place}/checkpoint-{STOP}")
print(f"transformers {transformers.__version__}, {ROWS} rows an epoch, stopped after step {STOP}")
print(f"second epoch, not stopped: {due[ROWS:]}")
print(f"second epoch, resumed:     {found[ROWS:]}")
sys.exit(found != due)
