"""The search for a stream's messages by subject, with wildcards.

Here, bottom to top: `filters` match subjects, `sorted_subjects` holds a stream's subjects in order, `kept_filters`
keeps the matches of a filter, `subject_index` maps a subject to its sequences, `matches` keeps the sequences of
wildcards, `queries` chooses the cheapest way to an answer. Not here: views of one moment (`store.view`) and removals in
pieces (`store.slices`). Promise: the way never changes the answer.
"""
