"""The subscription index: finds the subscriptions that match a subject.

A trie by token with `*` and `>` branches, and two bounded caches of compiled answers in front of it:

* `literals`: subject -> answer;
* `prefixes`: all tokens but the last -> answer, for subjects whose last token is taken by wildcards only. Each
  reply to a client's inbox (`_INBOX.<id>.<unique>`), every PubAck for one, has a new subject and the same answer.

An answer may be in either cache; inserting or removing a subscription removes every answer that it changes. A third
cache, for acks, is asked by `match_deep` only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

from jetcluster.protocol import subjects

MAX_CACHED = 32_768
"""Answers per cache; a cache that is full is emptied (nats-server sweeps its cache of 1,024 at random)."""

MAX_CACHED_BYTES = 256
"""Bytes of a subject; the answers for longer ones are found each time. Clients choose subjects, of 4 KB and more, and a
cache that counts its entries would hold hundreds of megabytes of them."""

ACK_TOKENS = 5
"""Last tokens of an ack's subject, a consumer's numbers, which only wildcards match."""

_DOT = b"."
_STAR = b"*"
_FULL = b">"


class Subscriber(Protocol):
    """A subscription as the index sees it; anything hashable by identity."""

    @property
    def subject(self) -> bytes: ...

    @property
    def queue(self) -> bytes | None: ...


S = TypeVar("S", bound=Subscriber)
A = TypeVar("A")


class _Node(Generic[S]):
    __slots__ = ("children", "full", "leaves", "plain", "queues", "star")

    def __init__(self) -> None:
        self.children: dict[bytes, _Node[S]] = {}
        self.star: _Node[S] | None = None
        self.full: _Node[S] | None = None
        self.plain: dict[S, None] = {}
        self.queues: dict[bytes, dict[S, None]] = {}
        self.leaves = 0
        """The number of `children` that hold subscriptions themselves (not only below them)."""

    def is_empty(self) -> bool:
        return not (self.plain or self.queues or self.children or self.star or self.full)

    def has_subscriptions(self) -> bool:
        return bool(self.plain or self.queues)

    def child(self, token: bytes) -> _Node[S] | None:
        if token == _STAR:
            return self.star
        if token == _FULL:
            return self.full
        return self.children.get(token)

    def add_child(self, token: bytes) -> _Node[S]:
        node: _Node[S] = _Node()
        if token == _STAR:
            self.star = node
        elif token == _FULL:
            self.full = node
        else:
            self.children[token] = node
        return node

    def remove_child(self, token: bytes) -> None:
        if token == _STAR:
            self.star = None
        elif token == _FULL:
            self.full = None
        else:
            del self.children[token]


class Sublist(Generic[S, A]):
    """Index of subscriptions with compiled, cached answers.

    `compile(subject, plain, queues)` turns a match into an answer. An answer cached by prefix serves many subjects, so
    it must not depend on the last token of `subject`.
    """

    def __init__(self, compile: Callable[[bytes, list[S], dict[bytes, list[S]]], A]) -> None:
        self._compile = compile
        self.walked = 0
        """Nodes of the trie visited: the cost so far of subjects that were in no cache."""
        self._root: _Node[S] = _Node()
        self._heads: dict[bytes, set[bytes]] = {}
        """All tokens but the last -> cached literals, to find what a new `head.*` changes."""
        self.deep: dict[bytes, A] = {}
        """All tokens but the last ACK_TOKENS -> answer, where those are taken by wildcards only."""
        self._deep_roots = {_STAR, _FULL}
        """First tokens of subscriptions that may change one of these."""
        self.literals: dict[bytes, A] = {}
        self.prefixes: dict[bytes, A] = {}
        self.count = 0
        self.inserts = 0
        self.removes = 0
        self.matches = 0
        """Walks of the trie: cache misses."""

    def insert(self, subscription: S) -> None:
        """Adds a subscription with a valid subject. Adding one twice is a mistake of the caller."""
        node = self._root
        parent = node
        token = b""
        for token in subscription.subject.split(_DOT):
            parent = node
            node = node.child(token) or node.add_child(token)
        if not node.has_subscriptions() and token != _STAR and token != _FULL:
            parent.leaves += 1
        members = node.plain if subscription.queue is None else node.queues.setdefault(subscription.queue, {})
        assert subscription not in members
        members[subscription] = None
        self.count += 1
        self.inserts += 1
        self.forget(subscription.subject)

    def remove(self, subscription: S) -> bool:
        """Removes a subscription; False when it was not there."""
        path: list[tuple[_Node[S], bytes]] = []
        node = self._root
        token = b""
        for token in subscription.subject.split(_DOT):
            path.append((node, token))
            child = node.child(token)
            if child is None:
                return False
            node = child
        queue = subscription.queue
        members = node.plain if queue is None else node.queues.get(queue, {})
        if subscription not in members:
            return False
        del members[subscription]
        if queue is not None and not members:
            del node.queues[queue]
        if not node.has_subscriptions() and token != _STAR and token != _FULL:
            path[-1][0].leaves -= 1
        for parent, step in reversed(path):
            if not node.is_empty():
                break
            parent.remove_child(step)
            node = parent
        self.count -= 1
        self.removes += 1
        self.forget(subscription.subject)
        return True

    def forget(self, subject: bytes) -> None:
        """Drops every cached answer that a subscription to `subject` takes part in."""
        head, _, last = subject.rpartition(_DOT)
        if self.deep and subject.partition(_DOT)[0] in self._deep_roots:
            self.deep.clear()
            self._deep_roots = {_STAR, _FULL}
        if not self.literals and not self.prefixes:
            return
        if subjects.is_literal(subject):
            # Under `head` the last token now matters (or no longer does), so the shared answer goes as well.
            if self.literals.pop(subject, None) is not None:
                self._heads[head].discard(subject)
            self.prefixes.pop(head, None)
        elif last == _STAR and subjects.is_literal(head):
            self.prefixes.pop(head, None)
            for cached in self._heads.pop(head, ()):
                self.literals.pop(cached, None)
        else:
            self._clear()

    def _clear(self) -> None:
        self.literals.clear()
        self.prefixes.clear()
        self._heads.clear()

    def compile_with(self, compile: Callable[[bytes, list[S], dict[bytes, list[S]]], A]) -> None:
        """Sets `compile`, which makes all answers from now on, cached ones included."""
        self._compile = compile
        self._clear()
        self.deep.clear()
        self._deep_roots = {_STAR, _FULL}

    def match(self, subject: bytes) -> A:
        """The answer for a subject, from a cache or by a walk. Wildcards in `subject` are plain text; a subject with
        an empty token matches no subscription."""
        answer = self.literals.get(subject)
        if answer is None:
            head, _, last = subject.rpartition(_DOT)
            answer = self.prefixes.get(head) if last else None
            if answer is None:
                answer = self._walk(subject, head)
        return answer

    def match_deep(self, subject: bytes) -> A:
        """Like `match`, for subjects that are used once and differ only in their last ACK_TOKENS tokens: acks."""
        parts = subject.rsplit(_DOT, ACK_TOKENS)
        answer = self.deep.get(parts[0])
        if answer is not None and len(parts) > ACK_TOKENS and b"" not in parts:
            return answer
        answer, free = self._compiled(subject)
        if free >= ACK_TOKENS and len(parts) > ACK_TOKENS and len(parts[0]) <= MAX_CACHED_BYTES:
            if len(self.deep) >= MAX_CACHED:
                self.deep.clear()
            self.deep[parts[0]] = answer
            self._deep_roots.add(subject.partition(_DOT)[0])
        return answer

    def remember(self, subject: bytes, answer: A) -> None:
        """Caches by subject an answer that came by prefix: worth it for a subject that is published to repeatedly."""
        if len(subject) > MAX_CACHED_BYTES:
            return
        literals = self.literals
        if len(literals) >= MAX_CACHED:
            literals.clear()
            self._heads.clear()
        self._heads.setdefault(subject.rpartition(_DOT)[0], set()).add(subject)
        literals[subject] = answer

    def _walk(self, subject: bytes, head: bytes) -> A:
        answer, free = self._compiled(subject)
        if len(subject) > MAX_CACHED_BYTES:
            return answer
        if free and head:
            if len(self.prefixes) >= MAX_CACHED:
                self.prefixes.clear()
            self.prefixes[head] = answer
        else:
            self.remember(subject, answer)
        return answer

    def _compiled(self, subject: bytes) -> tuple[A, int]:
        """The answer, and how many of the last tokens could be any others."""
        self.matches += 1
        tokens = subject.split(_DOT)
        plain: list[S] = []
        queues: dict[bytes, list[S]] = {}
        free = self._collect(tokens, plain, queues) if b"" not in tokens else 0
        return self._compile(subject, plain, queues), free

    def _collect(self, tokens: list[bytes], plain: list[S], queues: dict[bytes, list[S]]) -> int:
        """Fills `plain` and `queues`; returns how many of the last tokens were taken by wildcards only, so that any
        others in their place would give the same."""
        live = [self._root]
        last = tokens.pop()
        free = walked = 0
        for token in tokens:
            following: list[_Node[S]] = []
            free += 1
            walked += len(live)
            for node in live:
                if node.full is not None:
                    _take(node.full, plain, queues)
                if node.children:
                    free = 0
                    child = node.children.get(token)
                    if child is not None:
                        following.append(child)
                if node.star is not None:
                    following.append(node.star)
            live = following
        free += 1
        for node in live:
            if node.leaves:
                free = 0
                child = node.children.get(last)
                if child is not None:
                    _take(child, plain, queues)
            if node.full is not None:
                _take(node.full, plain, queues)
            if node.star is not None:
                _take(node.star, plain, queues)
        self.walked += walked + len(live)
        return free

    def __iter__(self) -> Iterator[S]:
        """All subscriptions, in no order."""
        stack = [self._root]
        while stack:
            node = stack.pop()
            yield from node.plain
            for members in node.queues.values():
                yield from members
            stack.extend(node.children.values())
            stack.extend(child for child in (node.star, node.full) if child is not None)

    def portions(self) -> Iterator[list[S]]:
        """Yields all subscriptions, those of one node of the tree at a time; subscriptions that come or go in between
        may be among them or not."""
        stack = [self._root]
        while stack:
            node = stack.pop()
            if node.plain or node.queues:
                yield [*node.plain, *(member for members in node.queues.values() for member in members)]
            stack.extend(node.children.values())
            stack.extend(child for child in (node.star, node.full) if child is not None)

    def __len__(self) -> int:
        return self.count


def _take(node: _Node[S], plain: list[S], queues: dict[bytes, list[S]]) -> None:
    plain.extend(node.plain)
    for queue, members in node.queues.items():
        queues.setdefault(queue, []).extend(members)
