"""What every other package uses: words to the user, locks that survive a fork."""
