"""Accounts that share, and what their clients do, step by step: played at both servers by test_imports.py."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Scenario:
    name: str
    config: str
    steps: list[str]
    later: str = ""
    """The configuration after the step RELOAD."""

    @property
    def waits(self) -> bool:
        return any(step.endswith(": WAIT") for step in self.steps)

    @property
    def users(self) -> list[str]:
        return list(dict.fromkeys(step.partition(": ")[0] for step in self.steps))


def accounts(**blocks: str) -> str:
    """A user with the name of its account in small letters, password p; `A2` is of A."""
    made = []
    for name, block in blocks.items():
        users = ", ".join(f"{{user: {user}, password: p}}" for user in (name.lower(), f"{name.lower()}2"))
        made.append(f"{name} {{ users: [ {users} ]\n {block} }}")
    return "accounts {\n" + "\n".join(made) + "\n}\n"


STREAMS = accounts(
    A='exports: [ {stream: "pub.>"}, {stream: "two.*.*"}, {stream: one}, {stream: "priv.>", accounts: [C]} ]',
    B="""imports: [
      {stream: {account: A, subject: "pub.>"}, prefix: imp}
      {stream: {account: A, subject: "two.*.*"}, to: "my.$2.$1"}
      {stream: {account: A, subject: one}, to: uno} ]""",
    C='imports: [ {stream: {account: A, subject: "priv.x"}}, {stream: {account: A, subject: "pub.*"}} ]',
)
SERVICES = accounts(
    A="""exports: [ {service: "req.>"}, {service: "two.*.*"}, {service: one, accounts: [B]}
      {service: many, response: stream}, {service: "mine.*", account_token_position: 2}, {service: shared} ]""",
    B="""imports: [
      {service: {account: A, subject: "req.x"}, to: local.x}
      {service: {account: A, subject: "two.*.*"}, to: "my.$2.$1"}
      {service: {account: A, subject: one}}
      {service: {account: A, subject: many}}
      {service: {account: A, subject: mine.B}, to: mine}
      {service: {account: A, subject: shared}, share: true} ]
      exports: [ {service: "local.x"}, {service: shared} ]""",
    C="""imports: [ {service: {account: B, subject: local.x}, to: far}, {service: {account: A, subject: "req.>"}}
      {service: {account: B, subject: shared}} ]""",
)

SCENARIOS = [
    Scenario(
        "stream imports",
        STREAMS,
        [
            "b: SUB imp.> 1",
            "b: SUB imp.pub.x 2",
            "b: SUB imp.*.y 3",
            "b: SUB > 4",
            "b: SUB imp.pub.*.z 5",
            "b: SUB pub.x 6",
            "b: SUB *.pub.> 7",
            "b: SUB my.*.1 8",
            "b: SUB my.a.* 9",
            "b: SUB uno 10",
            "b: SUB one 11",
            "b: SUB my.> 12",
            "c: SUB priv.x 1",
            "c: SUB pub.> 2",
            "c: SUB priv.y 3",
            "c: SUB > 4",
            "a: PUB pub.x | one",
            "a: PUB pub.y | two",
            "a: PUB pub.a.z | three",
            "a: PUB two.1.a | four",
            "a: PUB two.2.a | five",
            "a: PUB one | six",
            "a: PUB priv.x rep | seven",
            "a: PUB priv.y | eight",
            "a: PUB other | nine",
            "b: PUB imp.pub.x | back",
            "a2: SUB > 1",
            "b: PUB imp.pub.x | back",
            "c: PUB priv.x | back",
            "b: UNSUB 4",
            "b: UNSUB 1 1",
            "a: PUB pub.x | again",
            "a: PUB pub.x | and again",
            "a: HPUB pub.x | K: v | with headers",
        ],
    ),
    Scenario(
        "queues on imported subjects",
        STREAMS,
        [
            "b: SUB imp.pub.> q 1",
            "b: SUB imp.pub.> q 1",
            "a: SUB pub.> p 1",
            "c: SUB pub.* p 2",
            "a2: PUB pub.x.y | one",
            "a2: PUB pub.x.y | two",
            "b: UNSUB 1",
            "a2: PUB pub.x.y | three",
            "a: UNSUB 1",
            "a2: PUB pub.x | four",
            "a2: PUB pub.x.y in | nobody",
        ],
    ),
    Scenario(
        "requests",
        SERVICES,
        [
            "b: SUB in.* 9",
            "b: PUB local.x in.0 | nobody serves",
            "a: SUB req.> 1",
            "a: SUB two.> 2",
            "a: SUB one 3",
            "a: SUB many 4",
            "a: SUB mine.* 5",
            "a: SUB shared 6",
            "b: PUB local.x in.1 | ask",
            "a: REPLY answer",
            "a: REPLY again",
            "b: PUB my.1.2 in.2 | swapped",
            "a: REPLY answer",
            "b: PUB one in.3 | private",
            "a: REPLY answer",
            "b: PUB many in.4 | stream",
            "a: REPLY answer",
            "a: REPLY again",
            "a: REPLY ",
            "a: REPLY too late",
            "b: PUB mine in.5 | token",
            "a: REPLY answer",
            "b: PUB shared in.6 | share",
            "a: REPLY answer",
            "b: PUB local.x | no reply",
            "b: HPUB local.x in.7 | K: v | with headers",
            "b: HPUB local.x in.7 | Nats-Request-Info: {} | spoofed",
            "b: PUB req.x in.8 | not imported under this name",
            "b: PUB one.y in.8 | not imported",
            "c: SUB in.* 9",
            "c: PUB one in.1 | private to others",
            "c: PUB req.q in.1 | direct",
            "a: REPLY answer",
            "c: PUB far in.2 | through two accounts",
            "a: REPLY answer",
            "c: PUB shared in.3 | through two accounts, shared by one",
            "a: REPLY answer",
            "b: SUB local.x 8",
            "b2: PUB local.x in.9 | those of the importing account get it too",
        ],
    ),
    Scenario(
        "responses that want an answer",
        SERVICES,
        [
            "b: SUB in.* 9",
            "a: SUB req.> 1",
            "a: SUB back.* 2",
            "b: PUB local.x in.1 | ask",
            "a: REPLY question -> back.1",
            "b: REPLY answer",
            "b: PUB local.x in.2 | interest goes",
            "b: UNSUB 9",
            "a: REPLY nobody",
        ],
    ),
    Scenario(
        "queues of a service",
        SERVICES,
        [
            "b: SUB in.* 9",
            "a: SUB req.> q 1",
            "b: PUB local.x in.1 | ask",
            "a: REPLY answer",
            "a: UNSUB 1",
            "b: PUB local.x in.2 | ask",
        ],
    ),
    Scenario(
        "latency",
        accounts(
            A="""exports: [ {service: req, latency: lat, response_threshold: "100ms"}
              {service: traced, latency: {sampling: headers, subject: lat}} ]""",
            B="""imports: [ {service: {account: A, subject: req}}
              {service: {account: A, subject: traced}, share: true} ]""",
        ),
        [
            "a: SUB req 1",
            "a2: SUB lat 1",
            "b: SUB in.* 9",
            "b: PUB req in.1 | ask",
            "a: REPLY answer",
            "b: PUB req in.2 | too slow",
            "a: WAIT",
            "b: PUB req | no reply",
            "a: UNSUB 1",
            "b: PUB req in.3 | nobody",
            "a: SUB traced 2",
            "b: HPUB traced in.4 | X-B3-Sampled: 1 | traced",
            "a: REPLY answer",
            "b: HPUB traced in.5 | X-B3-Sampled: 0 | not traced",
            "a: REPLY answer",
        ],
    ),
    Scenario(
        "mappings",
        accounts(
            A="""mappings {
              foo: bar
              "one.*.two.*": "t.$2.$1"
              "w.*": "w.{{wildcard(1)}}.x"
              "p.*.*": "p.{{partition(3,1,2)}}.$1"
              "s.*": "s.{{split(1,-)}}.end"
              "sl.*": "sl.{{splitFromLeft(1,2)}}"
              "sr.*": "sr.{{SplitFromRight(1,2)}}"
              "cl.*": "cl.{{sliceFromLeft(1,2)}}"
              "cr.*": "cr.{{sliceFromRight(1,2)}}"
              "l.*": "l.{{left(1,2)}}"
              "r.*": "r.{{right(1,2)}}"
              "tail.>": "t2.>"
              lost: [ {dest: lost, weight: 0}, {dest: gone, weight: 0} ]
              all: [ {dest: everything, weight: 100%} ]
              here: [ {dest: there, weight: 100%, cluster: C} ]
              chain: foo
              "*.last": "end.$1"
              "first.*": "second.$1"
            }"""
        ),
        [
            "a: SUB > 1",
            "a: SUB foo 2",
            "a: SUB bar 3",
            "a2: SUB in 9",
            "a2: PUB foo | 1",
            "a2: PUB bar | 2",
            "a2: PUB one.x.two.y | 3",
            "a2: PUB w.a rep | 4",
            "a2: PUB p.a.b | 5",
            "a2: PUB s.a-b-c | 6",
            "a2: PUB sl.abcdef | 7",
            "a2: PUB sr.abcdef | 8",
            "a2: PUB cl.abcde | 9",
            "a2: PUB cr.abcde | 10",
            "a2: PUB l.abcde | 11",
            "a2: PUB r.abcde | 12",
            "a2: PUB tail.a.b | 13",
            "a2: PUB lost in | 14",
            "a2: PUB all | 15",
            "a2: PUB here | 16",
            "a2: PUB chain | 17",
            "a2: PUB x.last | 18",
            "a2: HPUB foo | K: v | 20",
            "a: UNSUB 1",
            "a: UNSUB 3",
            "a2: PUB foo in | nobody",
        ],
    ),
    Scenario(
        "mappings of the global account",
        'authorization { users: [ {user: g, password: p} ] }\nmappings { foo: bar, "x.*": "y.$1" }\n',
        ["g: SUB > 1", "g: PUB foo | 1", "g: PUB x.a | 2", "g: PUB bar | 3"],
    ),
    Scenario(
        "mappings and permissions",
        """accounts { A { mappings { foo: bar, ok: fine }
          users: [ {user: a, password: p}, {user: a2, password: p, permissions: {publish: [foo, fine]}} ] } }""",
        ["a: SUB > 1", "a2: PUB foo | 1", "a2: PUB ok | 2", "a2: PUB bar | 3", "a2: PUB fine | 4"],
    ),
    Scenario(
        "mappings and imports",
        accounts(
            A="""exports: [ {service: "req.>"}, {stream: "pub.>"} ]
              mappings { "req.x": "req.y", "pub.a": "pub.b", in: inbox }""",
            B="""imports: [ {service: {account: A, subject: "req.x"}}, {stream: {account: A, subject: "pub.*"}} ]
              mappings { alias: req.x, "imp.a": "imp.b" }""",
        ),
        [
            "b: SUB in.* 9",
            "b: SUB pub.> 1",
            "a: SUB req.> 1",
            "b: PUB req.x in.1 | mapped in the other account",
            "a: REPLY answer",
            "b: PUB alias in.2 | mapped here",
            "a: REPLY answer",
            "a: PUB pub.a | mapped before it is shared",
        ],
    ),
    Scenario(
        "a service that is a stream too is not exported again",
        accounts(
            A='exports: [ {service: "req.>"}, {stream: "req.>"} ]',
            B='imports: [ {service: {account: A, subject: "req.x"}} ]',
            C='imports: [ {stream: {account: A, subject: "req.>"}} ]',
        ),
        ["a: SUB req.> 1", "c: SUB req.> 1", "b: PUB req.x | by the service", "a2: PUB req.x | in its own account"],
    ),
    Scenario(
        "streams are not handed on",
        accounts(
            A='exports: [ {stream: "pub.>"} ]',
            B='imports: [ {stream: {account: A, subject: "pub.>"}} ], exports: [ {stream: "pub.>"} ]',
            C='imports: [ {stream: {account: B, subject: "pub.>"}} ]',
        ),
        ["b: SUB pub.> 1", "c: SUB pub.> 1", "a: PUB pub.x | one", "b2: PUB pub.x | two"],
    ),
    Scenario(
        "own exports",
        accounts(
            A="""exports: [ {service: req}, {stream: "pub.>"} ]
              imports: [ {service: {account: A, subject: req}, to: ask}
                {stream: {account: A, subject: "pub.>"}, prefix: my} ]"""
        ),
        [
            "a: SUB req 1",
            "a: SUB my.> 2",
            "a2: SUB in 1",
            "a2: PUB ask in | 1",
            "a: REPLY answer",
            "a2: PUB pub.x | 2",
        ],
    ),
    Scenario(
        "three wildcards change places",
        accounts(
            A='exports: [ {service: "three.*.*.*"}, {stream: "s.*.*.*"} ]',
            B="""imports: [ {service: {account: A, subject: "three.*.*.*"}, to: "turn.$2.$3.$1"}
              {stream: {account: A, subject: "s.*.*.*"}, to: "t.$2.$3.$1"} ]""",
        ),
        [
            "a: SUB three.> 1",
            "b: PUB turn.a.b.c | 1",
            "b: SUB t.> 1",
            "b: SUB t.y.*.* 2",
            "b: SUB t.*.y.* 3",
            "a: PUB s.x.y.z | 2",
        ],
    ),
    Scenario(
        "several accounts behind one subject",
        accounts(
            A="exports: [ {service: req} ]",
            B="exports: [ {service: req} ]",
            C="imports: [ {service: {account: A, subject: req}}, {service: {account: B, subject: req}} ]",
        ),
        ["a: SUB req 1", "b: SUB req 1", "c: SUB in 1", "c: PUB req in | both", "a: REPLY one", "b: REPLY two"],
    ),
    Scenario(
        "everything of an account",
        accounts(
            A='exports: [ {service: ">"}, {stream: ">"} ]',
            B="""imports: [ {service: {account: A, subject: ">"}, to: "A.>"}
              {stream: {account: A, subject: ">"}, prefix: from} ]""",
        ),
        [
            "a: SUB foo.> 1",
            "b: SUB in 9",
            "b: SUB from.> 1",
            "b: SUB from.*.b 2",
            "b: SUB > 3",
            "b: PUB A.foo.b in | request",
            "a: REPLY answer",
            "b: PUB A.nobody in | request",
            "a2: PUB foo.b | stream",
            "a2: PUB x.b rep | stream",
            "b: PUB A in | no token is left",
        ],
    ),
    Scenario(
        "permissions on both sides",
        """accounts {
          A { exports: [ {service: "req.>"}, {stream: "pub.>"}, {service: many, response: stream} ]
            users: [
              {user: a, password: p, permissions: {publish: [none], subscribe: ["req.*"], allow_responses: true}}
              {user: a2, password: p, permissions: {subscribe: many, publish: "pub.>", allow_responses: {max: 2}}} ] }
          B { imports: [ {service: {account: A, subject: "req.>"}, to: "ask.>"}
              {stream: {account: A, subject: "pub.>"}, prefix: imp}, {service: {account: A, subject: many}} ]
            users: [ {user: b, password: p, permissions: {publish: ["ask.x", many], subscribe: ["imp.pub.x", "in.*"]}}
              {user: b2, password: p, permissions: {subscribe: {allow: "imp.>", deny: "imp.pub.secret"}}} ] } }""",
        [
            "a: SUB req.x 1",
            "a: SUB many 2",
            "a2: SUB many 1",
            "b: SUB in.* 9",
            "b: SUB imp.pub.x 1",
            "b: SUB imp.pub.y 2",
            "b: SUB pub.x 3",
            "b2: SUB imp.pub.> 1",
            "b2: SUB imp.pub.> q 2",
            "b: PUB ask.x in.1 | allowed",
            "a: REPLY answer",
            "a: REPLY again",
            "b: PUB ask.y in.1 | not allowed",
            "b: PUB req.x in.1 | not allowed either",
            "b: PUB many in.2 | two responses",
            "a2: REPLY 1",
            "a2: REPLY 2",
            "a2: REPLY 3",
            "a2: PUB pub.x | seen",
            "a2: PUB pub.secret | denied at delivery",
            "a2: PUB other | not allowed",
        ],
    ),
    Scenario(
        "streams by account token",
        accounts(
            A='exports: [ {stream: "to.*.news", account_token_position: 2} ]',
            B='imports: [ {stream: {account: A, subject: "to.B.news"}, to: news} ]',
            C='imports: [ {stream: {account: A, subject: "to.C.news"}} ]',
        ),
        [
            "b: SUB > 1",
            "c: SUB > 1",
            "a: PUB to.B.news | for B",
            "a: PUB to.C.news | for C",
            "a: PUB to.D.news | for nobody",
        ],
    ),
    Scenario(
        "publishers without echo and without notice",
        SERVICES,
        [
            'b: CONNECT {"user":"b","pass":"p","verbose":false,"echo":false,"headers":true}',
            "b: SUB in 9",
            "b: SUB local.x 1",
            "b: PUB local.x in | nobody, and nobody is told",
            "a: SUB req.> 1",
            "b: PUB local.x in | served",
            "a: REPLY answer",
        ],
    ),
    Scenario(
        "reload",
        accounts(
            A='exports: [ {stream: "pub.>"}, {service: "req.>"}, {service: gone} ], mappings { foo: bar, keep: kept }',
            B="""imports: [ {stream: {account: A, subject: "pub.>"}, prefix: imp}
              {service: {account: A, subject: "req.x"}, to: ask}, {service: {account: A, subject: gone}} ]""",
            C="",
        ),
        [
            "b: SUB > 1",
            "b: SUB imp.pub.x q 2",
            "b: SUB new.pub.x 3",
            "b: SUB in 9",
            "c: SUB > 1",
            "a: SUB req.> 1",
            "a: SUB gone 2",
            "a: SUB bar 3",
            "a: SUB foo 4",
            "a2: PUB pub.x | before",
            "a2: PUB foo | before",
            "b: PUB ask in | asked before, answered after",
            "b: RELOAD",
            "a: REPLY answer",
            "a2: PUB pub.x | after",
            "a2: PUB foo | after",
            "a2: PUB keep | after",
            "b: PUB ask in | after",
            "b: PUB please in | after",
            "a: REPLY answer",
            "b: PUB gone in | after",
            "c: PUB req.c in | a new importer",
            "b: UNSUB 1",
            "a2: PUB pub.x | and after",
        ],
        later=accounts(
            A='exports: [ {stream: "pub.>"}, {service: "req.>"} ], mappings { foo: foo2, keep: kept }',
            B="""imports: [ {stream: {account: A, subject: "pub.>"}, prefix: new}
              {service: {account: A, subject: "req.x"}, to: please} ]""",
            C='imports: [ {service: {account: A, subject: "req.c"}}, {stream: {account: A, subject: "pub.x"}} ]',
        ),
    ),
    Scenario(
        "a response does not enter its own import again",
        accounts(
            A='exports: [ {service: ">"} ]',
            B='imports: [ {service: {account: A, subject: ">"}} ]',
        ),
        [
            "b: SUB in.* 9",
            "a: SUB req 1",
            "a2: SUB > 2",
            "b: PUB req in.1 | ask",
            "a: REPLY answer",
            "a2: PUB in.1 | own",
        ],
    ),
]
