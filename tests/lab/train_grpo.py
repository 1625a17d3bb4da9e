"""An ordinary script of TRL's: GRPO of a small language model under ZeRO-3, checkpointed as TRL does it."""

import argparse
from pathlib import Path

import datasets
import trl
from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM, set_seed

DEEPSPEED = {
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
    "zero_force_ds_cpu_optimizer": False,
}
SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}


def make(folder: Path, vocabulary: int) -> Path:
    """A model half of whose tokens end an answer, so that the ranks' answers differ in length."""
    set_seed(0)
    model = Qwen2ForCausalLM(Qwen2Config(vocab_size=vocabulary, num_hidden_layers=2, **SIZES))
    model.generation_config.eos_token_id = list(range(0, vocabulary, 2))
    model.save_pretrained(folder)
    return folder


def reward(completions: list[str], **_columns: object) -> list[float]:
    return [float(len(set(text))) for text in completions]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--output_dir", type=Path, required=True)
    parser.add_argument("--make", action="store_true", help="make the model and end")
    parser.add_argument("--no-checkpointing", action="store_true")
    asked = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(asked.tokenizer)
    if asked.make:
        make(asked.output_dir, len(tokenizer))
        return
    arguments = trl.GRPOConfig(
        output_dir=str(asked.output_dir / "out"),
        per_device_train_batch_size=2,
        num_generations=2,
        max_completion_length=16,
        max_steps=3,
        learning_rate=1e-3,
        lr_scheduler_type="constant",
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        bf16=False,
        gradient_checkpointing=not asked.no_checkpointing,
        deepspeed=DEEPSPEED,
    )
    prompts = [f"describe {word} in the image" for word in ("a", "cat", "the", "what", "is", "assistant") * 4]
    trainer = trl.GRPOTrainer(
        model=str(asked.output_dir),
        reward_funcs=reward,
        args=arguments,
        train_dataset=datasets.Dataset.from_dict({"prompt": prompts}),
        processing_class=tokenizer,
    )
    trainer.train()


if __name__ == "__main__":
    main()
