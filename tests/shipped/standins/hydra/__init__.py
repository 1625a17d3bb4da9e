"""What programs ask of hydra: to make what a setting names."""
