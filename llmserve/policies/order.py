"""Who goes first: keys that order the queue, for any policy's `key=`. The smallest goes first.

A sequence is put in its place when it joins the queue, so a key may not change while it waits.
"""

import math
import numbers


def expected_tokens(sequence):
    """The output length that the request was said to have; ValueError if nobody said."""
    if sequence.request.expected_tokens is None:
        raise ValueError(
            f"request {sequence.id!r} has no expected_tokens, which a length oracle reads: "
            "set Request(expected_tokens=...), or take a policy that needs no hint"
        )
    return sequence.request.expected_tokens


def shortest_first(sequence):
    """An oracle's order: by expected output tokens, all of them, however many are there already."""
    return expected_tokens(sequence)


def steps_left(sequence, tokens_per_step):
    """The steps that a sequence still needs: for what its cache lacks, and for its output."""
    to_come = max(1, expected_tokens(sequence) - sequence.num_output_tokens)  # a hint may be too small
    return (sequence.num_uncomputed_tokens - 1) / tokens_per_step + to_come


def shortest_remaining(tokens_per_step):
    """An oracle's order: by the steps that a sequence still needs, its prompt or recomputation included.

    `tokens_per_step` prompt tokens take as long as one decode step: about the knee. ValueError unless it
    is above 0.
    """
    if not _is_number(tokens_per_step) or not tokens_per_step > 0:
        raise ValueError(
            f"tokens_per_step={tokens_per_step!r}: give the prompt tokens that take as long as a decode "
            "step, above 0; math.inf if prompts cost nothing"
        )

    def order(sequence):
        return steps_left(sequence, tokens_per_step)

    order.__name__ = f"shortest_remaining({tokens_per_step:g})"
    return order


def aged(key, seconds):
    """`key` with ageing: so many seconds of waiting make up for 1 of the key.

    After t seconds of waiting a sequence stands at key - t / seconds. That falls by the same for all, so
    arrival_time + seconds * key decides who is ahead, once and for all. 0 seconds: first come; math.inf:
    no ageing. ValueError unless it is 0 or more.
    """
    if not _is_number(seconds) or not seconds >= 0:
        raise ValueError(
            f"ageing of {seconds!r} seconds: give the seconds of waiting that make up for 1 of the key, "
            "0 or more; math.inf for no ageing"
        )

    def order(sequence):
        if seconds == math.inf:
            return key(sequence), sequence.arrival_time
        return sequence.arrival_time + seconds * key(sequence)

    order.__name__ = f"aged({getattr(key, '__name__', key)}, {seconds:g})"
    return order


def by_priority(seconds_per_class):
    """By `Request.priority`, smaller first, with ageing: so many seconds of waiting make up for a class."""
    order = aged(lambda sequence: sequence.request.priority, seconds_per_class)
    order.__name__ = f"by_priority({seconds_per_class:g})"
    return order


def _is_number(value):
    return isinstance(value, numbers.Real) and not isinstance(value, bool)
