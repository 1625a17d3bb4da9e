"""The stand-in's processor: an image processor and a tokenizer, side by side."""

from transformers.processing_utils import ProcessorMixin

from .image_processing_minicpmv import MiniCPMVBatchFeature

__all__ = ["MiniCPMVBatchFeature", "MiniCPMVProcessor"]


class MiniCPMVProcessor(ProcessorMixin):
    attributes = ["image_processor", "tokenizer"]  # noqa: RUF012
    image_processor_class = "AutoImageProcessor"
    tokenizer_class = "AutoTokenizer"

    def __init__(self, image_processor=None, tokenizer=None):
        super().__init__(image_processor, tokenizer)
        self.version = image_processor.version
