"""The search over a stream's messages by subject: what answers wildcards.

Here, bottom to top: `filters` match subjects, `sorted_subjects` has those of a stream in order, `kept_filters` keeps
what a filter matched, `subject_index` knows which sequences a subject has, `matches` keeps the sequences of wildcards,
`queries` chooses the cheapest way to an answer. Not here: views of one moment (`store.view`) and removals in pieces
(`store.slices`). Promise: the way never changes the answer.
"""
