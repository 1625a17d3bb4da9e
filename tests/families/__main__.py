"""python -m tests.families STACK: what ``tests.lab.model_classes`` says."""

from tests.lab import model_classes

if __name__ == "__main__":
    model_classes.main()
