// The login: any user of the server, by password, token, credentials file or nkey seed. None where the server asks none.
import { html, useEffect, useState } from "../vendor/ui.js";
import { Notice } from "../part/poll.js";
import { kept, login, welcome } from "../session.js";

const WAYS = { password: "User", token: "Token", creds: "Credentials file", seed: "NKey seed" };

export function Login() {
  const [server, setServer] = useState(null);
  const [way, setWay] = useState("password");
  const [state, set] = useState({ busy: true, error: null });

  const enter = async (fields, keep) => {
    set({ busy: true, error: null });
    try {
      await login(fields, keep);
    } catch (error) {
      set({ busy: false, error: new Error(explained(error)) });
    }
  };

  useEffect(() => {
    (async () => {
      try {
        const told = await welcome();
        setServer(told);
        const old = kept();
        if (old) await enter(old, true);
        else if (!told.auth_required) await enter({});
        else set({ busy: false, error: null });
      } catch (error) {
        set({ busy: false, error });
      }
    })();
  }, []);

  const submit = async (event) => {
    event.preventDefault();
    const form = new FormData(event.target);
    const fields = {};
    for (const name of ["user", "pass", "token", "seed", "inbox"]) if (form.get(name)) fields[name] = form.get(name);
    const file = form.get("creds");
    if (file?.size) fields.creds = await file.text();
    await enter(fields, form.get("keep") === "on");
  };

  return html`<main class="login">
    <form onSubmit=${submit} class="panel">
      <h1><img src="icon.svg" alt="" width="28" height="28" /> jetcluster</h1>
      <p class="faint">${server ? `${server.server_name}${server.cluster ? ` in ${server.cluster}` : ""}` : " "}</p>
      <fieldset class="ways"><legend>Log in with</legend>
        ${Object.entries(WAYS).map(([id, title]) => html`<label key=${id}><input type="radio" name="way" checked=${way === id} onChange=${() => setWay(id)} /> ${title}</label>`)}
      </fieldset>
      ${way === "password" && html`<label>User <input name="user" autocomplete="username" autocapitalize="none" spellcheck="false" required /></label>
        <label>Password <input name="pass" type="password" autocomplete="current-password" /></label>`}
      ${way === "token" && html`<label>Token <input name="token" type="password" required /></label>`}
      ${way === "creds" && html`<label>Credentials file <input name="creds" type="file" required /></label>`}
      ${way === "seed" && html`<label>Seed <input name="seed" type="password" placeholder="SU…" required /></label>`}
      <details><summary>More</summary>
        <label>Prefix of inboxes <input name="inbox" placeholder="_INBOX" spellcheck="false" /></label>
      </details>
      <label class="check"><input type="checkbox" name="keep" /> Stay logged in until this tab is closed</label>
      <${Notice} error=${state.error} />
      <div class="buttons">${server?.anonymous && html`<button type="button" disabled=${state.busy} onClick=${() => enter({})}>Without a login</button>`}
        <button class="primary" disabled=${state.busy || !server}>Log in</button></div>
      <p class="faint">The console is a client of the server: it may do what this user may.</p>
    </form>
  </main>`;
}

function explained(error) {
  const text = String(error.message ?? error);
  return /authorization|authentication/i.test(text) ? "The server refuses this login." : text;
}
