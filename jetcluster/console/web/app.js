// The frame of the console: login, navigation, and the page that the address names.
import { html, render, useEffect, useRef } from "./vendor/ui.js";
import { Boundary } from "./part/boundary.js";
import { Dialogs } from "./part/dialog.js";
import { route, to } from "./route.js";
import { link, logout, session } from "./session.js";
import { Login } from "./view/login.js";
import { PAGES, shownPages } from "./pages.js";

function Frame() {
  const { user, account, system, jetstream, why } = session.value;
  const [first] = route.value.path;
  const address = route.value.path.join("/");
  const main = useRef(null);
  const pages = shownPages(session.value);
  const page = pages.find((one) => one.path === first) ?? (first ? null : pages[0]);
  const hidden = !page && PAGES.some((one) => one.path === first);
  useEffect(() => {
    document.title = page ? `${[page.title, ...route.value.path.slice(1)].join(" · ")} – jetcluster` : "jetcluster console";
  }, [route.value]);
  // A screen reader goes on where the new page begins; the parts of a page, its tabs, do not move it.
  const place = route.value.path.slice(0, 2).join("/");
  const before = useRef(place);
  useEffect(() => {
    if (before.current !== place) main.current.focus({ preventScroll: true });
    before.current = place;
  }, [place]);
  return html`
    <a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); document.getElementById("main").focus(); }}>Skip to the content</a>
    <header class="top">
      <a class="brand" href=${to()}><img src="icon.svg" alt="" width="22" height="22" /> jetcluster</a>
      <nav aria-label="Pages">
        ${pages.map((one) => html`<a key=${one.path} href=${to(one.path)} aria-current=${one === page ? "page" : undefined}>${one.title}${one.count && html` <${one.count} />`}</a>`)}
      </nav>
      <div class="who"><span title=${system === "yes" ? "This account sees the cluster." : "This account sees its own streams."}>${user ? `${user} · ` : ""}${account}</span>
        <button type="button" onClick=${logout}>Log out</button></div>
    </header>
    ${link.value && html`<p class="notice warn wide" role="alert">${link.value}</p>`}
    ${(system === "unknown" || jetstream === "unknown") &&
    html`<p class="notice warn wide" role="alert">Not known whether this account has ${jetstream === "unknown" ? "JetStream" : "the cluster"}: ${why}. It is asked again.</p>`}
    <main id="main" tabindex="-1" ref=${main}>
      ${page
        ? html`<${Boundary} at=${address}><${page.view} key=${page.path} /><//>`
        : html`<h1>${hidden ? "Not for this user" : "No such page"}</h1>
          <p>${hidden ? "This account does not see that: the cluster is shown to users of the system account, streams to accounts with JetStream." : `There is nothing at ${location.hash}.`}</p>`}
    </main>
    <${Dialogs} />`;
}

function App() {
  return session.value ? html`<${Frame} />` : html`<${Login} />`;
}

const place = document.getElementById("app");
place.textContent = "";
render(html`<${App} />`, place);
