"""Programs vlmpatch has nothing to do with: they must not notice that it is there."""
