"""A model of JetStream: one request after the other, and for each of them the exact answers.

It is written from the reference alone and imports nothing of the product (an import contract holds that), so that it
cannot share a mistake with it. Slow and obvious: dictionaries and lists, no indexes.
"""
