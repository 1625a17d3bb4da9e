# ruff: noqa: F403, F405
"""A Trainer written as MiniCPM-V's is: it calls ``self.model``, and lives on a star import."""

import torch
import torch.nn as nn
from transformers import Trainer
from transformers.trainer import *
from transformers.trainer_pt_utils import nested_detach


class CPMTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False):
        labels = inputs.pop("labels") if "labels" in inputs else None
        if not self.args.use_lora:
            outputs = self.model(data=inputs, use_cache=False)
        else:
            with self.model._enable_peft_forward_hooks(**inputs):
                outputs = self.model.base_model(data=inputs, use_cache=False)
        if labels is None:
            loss = outputs["loss"] if isinstance(outputs, dict) else outputs[0]
        else:
            logits = outputs.logits.view(-1, self.model.config.vocab_size)
            loss = nn.CrossEntropyLoss()(logits, labels.view(-1).long().to(logits.device))
        return (loss, outputs) if return_outputs else loss

    def prediction_step(
        self,
        model: nn.Module,
        inputs: Dict[str, Union[torch.Tensor, Any]],
        prediction_loss_only: bool,
        ignore_keys: Optional[List[str]] = None,
    ) -> Tuple[Optional[torch.Tensor], Optional[torch.Tensor], Optional[torch.Tensor]]:
        inputs = self._prepare_inputs(inputs)
        labels = nested_detach(inputs.get("labels"))
        with torch.no_grad(), self.compute_loss_context_manager():
            loss, outputs = self.compute_loss(model, inputs, return_outputs=True)
        loss = loss.mean().detach()
        if prediction_loss_only:
            return (loss, None, None)
        return (loss, nested_detach(outputs.logits), labels)

    def training_step(self, model: nn.Module, inputs: Dict[str, Union[torch.Tensor, Any]]) -> torch.Tensor:
        model.train()
        inputs = self._prepare_inputs(inputs)
        with self.compute_loss_context_manager():
            loss = self.compute_loss(model, inputs)
        del inputs
        torch.cuda.empty_cache()
        if self.args.n_gpu > 1:
            loss = loss.mean()
        if self.use_apex:
            with amp.scale_loss(loss, self.optimizer) as scaled_loss:
                scaled_loss.backward()
        else:
            self.accelerator.backward(loss)
        return loss.detach() / self.args.gradient_accumulation_steps

    def _save(self, output_dir: Optional[str] = None, state_dict=None):
        output_dir = output_dir if output_dir is not None else self.args.output_dir
        os.makedirs(output_dir, exist_ok=True)
        logger.info(f"Saving model checkpoint to {output_dir}")
        known = (PreTrainedModel,) if not is_peft_available() else (PreTrainedModel, PeftModel)
        model = self.model if isinstance(self.model, known) else unwrap_model(self.model)
        model.save_pretrained(
            output_dir, state_dict=state_dict, safe_serialization=self.args.save_safetensors
        )
        if self.tokenizer is not None:
            self.tokenizer.save_pretrained(output_dir)
        torch.save(self.args, os.path.join(output_dir, TRAINING_ARGS_NAME))
