"""A Trainer that resumes a full training of a vision-language model finds none of the saved weights.

    python reproduce.py      # 1 where weights are not those of the checkpoint, 0 where all are; one process

``save_pretrained`` writes the names from before transformers 4.52, and the Trainer reads the file as it is.
"""

import sys
import tempfile

import torch
import transformers
from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
vision = CLIPVisionConfig(**sizes, image_size=28, patch_size=14)
text = LlamaConfig(vocab_size=97, **sizes)


def trainer(folder: str, seed: int) -> transformers.Trainer:
    torch.manual_seed(seed)
    model = LlavaForConditionalGeneration(LlavaConfig(vision_config=vision, text_config=text))
    arguments = transformers.TrainingArguments(folder, use_cpu=True, report_to="none")
    return transformers.Trainer(model, arguments)


with tempfile.TemporaryDirectory() as folder:
    trained, resumed = trainer(folder, seed=1), trainer(folder, seed=2)
    trained.save_model(folder)
    resumed._load_from_checkpoint(folder)  # what train(resume_from_checkpoint=…) calls
saved = trained.model.state_dict()
lost = [name for name, tensor in resumed.model.state_dict().items() if not torch.equal(tensor, saved[name])]
print(f"transformers {transformers.__version__}")
print(f"{len(lost)} of {len(saved)} weights are not those of the checkpoint")
sys.exit(bool(lost))
