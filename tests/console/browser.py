"""`Screen`: one page of the browser, and everything that must not happen on it. `Demo`: the servers that it shows."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from playwright.async_api import Browser, BrowserContext, Page, WebSocket, expect

from testkit.harness import Node, ProcessCluster

TOP = Path(__file__).resolve().parents[2]
PICTURES = TOP / "build" / "console"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
DESKTOP, PHONE = (1280, 820), (390, 844)
LOGINS = {"sys": "sys-pw", "app": "app-pw", "reader": "reader-pw", "watcher": "watcher-pw", "big": "big-pw"}
"""Users of three kinds: of the system account, of an account with JetStream, and those of both that may only look; and
one of another account, which has very much."""
_CONFIG = """
console: true
system_account: SYS
accounts {
  SYS { users: [ { user: sys, password: sys-pw }, { user: watcher, password: watcher-pw, $watcher } ] }
  APP { jetstream: enabled, users: [
    { user: app, password: app-pw }
    { user: reader, password: reader-pw, $reader }
  ] }
  BIG { jetstream: enabled, users: [ { user: big, password: big-pw } ] }
}
"""
WATCH = """addEventListener("securitypolicyviolation",
  (event) => console.error(`policy: ${event.violatedDirective} ${event.blockedURI}`))"""
RULES = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice")
_AXE = Path(__file__).parent / "vendor" / "axe.min.js.gz"


def configuration() -> str:
    """The servers' configuration; the permissions of who may only look are those that the manual gives."""
    manual = (TOP / "docs" / "console.md").read_text()
    text = _CONFIG
    for name in ("reader", "watcher"):
        text = text.replace(f"${name}", manual.partition(f"<!-- {name} -->\n```\n")[2].partition("```")[0])
    return text


def find_browser() -> str | None:
    """The Chromium of this machine; none is ever fetched."""
    return next((found for name in BROWSERS if (found := shutil.which(name))), None)


class Demo:
    """The servers, and where the console of one of them is."""

    def __init__(self, cluster: ProcessCluster) -> None:
        self.cluster = cluster
        for node in cluster.nodes:
            node.url = f"nats://app:{LOGINS['app']}@127.0.0.1:{node.port}"

    def url(self, at: int = 0) -> str:
        return f"http://127.0.0.1:{self.cluster[at].http_port}/ui/"

    def others(self, name: str) -> list[Node]:
        return [node for node in self.cluster.nodes if node.name != name]


class Screen:
    """A page with a context of its own. `check` fails on errors in the browser's console, exceptions, and requests to
    another host than the server's."""

    def __init__(self, context: BrowserContext, page: Page, url: str) -> None:
        self.context = context
        self.page = page
        self.url = url
        self.requested: list[str] = []
        self.wrong: list[str] = []
        self._host = urlsplit(url).netloc
        page.on("console", lambda said: self._said(said.type, said.text))
        page.on("pageerror", lambda error: self.wrong.append(f"exception: {error}"))
        page.on("request", lambda request: self._asked(request.url))
        page.on("websocket", self._connected)

    @classmethod
    async def open(
        cls, browser: Browser, url: str, size: tuple[int, int] = DESKTOP, scheme: Any = "light", user: str = ""
    ) -> Screen:
        """With a `user` the page logs in by itself, as in a tab that has stayed logged in."""
        width, height = size
        context = await browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
        await context.add_init_script(WATCH)
        if user:
            kept = json.dumps(json.dumps({"user": user, "pass": LOGINS[user]}))
            await context.add_init_script(f"sessionStorage.setItem('jetcluster-login', {kept})")
        context.set_default_timeout(10_000)
        return cls(context, await context.new_page(), url)

    def _said(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.wrong.append(f"{kind}: {text}")

    def _asked(self, url: str) -> None:
        self.requested.append(url)
        if urlsplit(url).netloc != self._host and not url.startswith(("data:", "blob:")):
            self.wrong.append(f"request to another host: {url}")

    def _connected(self, socket: WebSocket) -> None:
        self._asked(socket.url)

    def expect(self, *words: str) -> None:
        """Forgives what the browser reports with one of these words, e.g. a connection that the test cuts."""
        self.wrong = [one for one in self.wrong if not any(word in one for word in words)]

    def check(self) -> None:
        assert not self.wrong, self.wrong

    # -- ways about

    async def go(self, hash_: str = "") -> None:
        await self.page.goto(self.url + hash_)

    async def login(self, user: str, password: str = "", *, keep: bool = False) -> None:
        """Fills in the form and waits for nothing."""
        await self.page.fill("input[name=user]", user)
        await self.page.fill("input[name=pass]", password or LOGINS.get(user, ""))
        if keep:
            await self.page.check("input[name=keep]")
        await self.page.click("button.primary")

    async def enter(self, user: str, hash_: str = "", *, keep: bool = False) -> None:
        """Opens a page as a user."""
        await self.go(hash_)
        await self.login(user, keep=keep)
        await self.page.wait_for_selector("header.top")

    async def settled(self) -> None:
        """Waits until nothing on the page loads; the page's policy does not let `wait_for_function` run."""
        await self.page.wait_for_selector("main h1")
        await expect(self.page.locator(".loading")).to_have_count(0)

    async def close(self) -> None:
        await self.context.close()

    # -- how it looks

    async def picture(self, name: str) -> Path:
        PICTURES.mkdir(parents=True, exist_ok=True)
        path = PICTURES / f"{name}.png"
        await self.page.screenshot(path=path)
        return path

    async def overflow(self) -> int:
        """Pixels by which the page is wider than the window."""
        found: int = await self.page.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        return found

    async def faults(self, rules: Sequence[str] = RULES, kind: str = "tag") -> list[str]:
        """The faults that axe-core finds, one line each, three at most of one rule; `kind`: what
        `rules` are, tags or single rules."""
        if not await self.page.evaluate("typeof axe === 'object'"):
            await self.page.evaluate(gzip.decompress(_AXE.read_bytes()).decode())
        found = await self.page.evaluate(
            "(only) => axe.run(document, { runOnly: only, resultTypes: ['violations'] })",
            {"type": kind, "values": list(rules)},
        )
        return [
            f"{one['id']}: {node['target'][0]}: {node['failureSummary'].splitlines()[-1].strip()}"
            for one in found["violations"]
            for node in one["nodes"][:3]
        ]

    async def looks(self, name: str) -> list[str]:
        """Takes pictures of the page as it is, of both sizes and schemes. Returns what is wrong with how it looks."""
        faults: list[str] = []
        schemes: tuple[Literal["light", "dark"], ...] = ("light", "dark")
        for scheme in schemes:
            await self.page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
            for size, (width, height) in (("desktop", DESKTOP), ("phone", PHONE)):
                await self.page.set_viewport_size({"width": width, "height": height})
                await self.picture(f"{name}-{scheme}-{size}")
                if await self.overflow():
                    faults.append(f"{scheme} {size}: the page is wider than the window")
                if (scheme, size) != ("dark", "phone"):  # the colours of the one, the layout of the other
                    faults += [f"{scheme} {size}: {fault}" for fault in await self.faults()]
        await self.page.set_viewport_size({"width": DESKTOP[0], "height": DESKTOP[1]})
        return faults
