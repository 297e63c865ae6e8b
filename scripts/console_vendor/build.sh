#!/usr/bin/env bash
# Makes jetcluster/console/web/vendor from the packages that package-lock.json pins, for who changes one of them. The
# result is committed: neither an install nor a start needs Node.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=$here/../../jetcluster/console/web/vendor
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -r "$here"/package.json "$here"/package-lock.json "$here"/entries "$work"
cd "$work"
npm ci --silent --no-audit --no-fund
mkdir -p "$out"
for name in ui nats plot; do
  node_modules/.bin/esbuild "entries/$name.js" --bundle --minify --format=esm --target=es2022 --legal-comments=none --external:node:crypto \
    --banner:js="// Made by scripts/console_vendor/build.sh; versions and licences: LICENSES.txt" --outfile="$out/$name.js" --log-level=warning
done
cp node_modules/uplot/dist/uPlot.min.css "$out/plot.css"
node -e '
  const fs = require("fs"), path = require("path");
  const lock = require("./package-lock.json").packages;
  const parts = [];
  for (const [at, one] of Object.entries(lock)) {
    if (!at || one.dev || one.optional) continue;
    const file = fs.readdirSync(at).find((name) => /^licen[cs]e/i.test(name));
    const name = at.replace(/^.*node_modules\//, "");
    parts.push(`${name} ${one.version}, ${one.license}\nhttps://www.npmjs.com/package/${name}/v/${one.version}\n\n${file ? fs.readFileSync(path.join(at, file), "utf8").trim() : ""}`);
  }
  fs.writeFileSync(process.argv[1], parts.join(`\n\n${"-".repeat(80)}\n\n`) + "\n");
' "$out/LICENSES.txt"
ls -l "$out"
