"""The model's switch for gradient checkpointing."""


class AcmeModel:
    def enable_checkpointing(self, use_reentrant: bool = True) -> str:
        return "reentrant" if use_reentrant else "non-reentrant"
