"""One module per figure that is not on the page of `make bench`: what it needs, how it is run, what it prints."""
