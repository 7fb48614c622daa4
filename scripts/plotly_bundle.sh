#!/bin/sh
# Builds assets/plotly/plotly-page.min.js: the core of plotly.js with lines, bars and heatmaps, the
# only traces of the page. It needs npm.
set -e
version=4.1.1
target=$(cd "$(dirname "$0")/.." && pwd)/assets/plotly/plotly-page.min.js
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --no-audit --no-fund --ignore-scripts "plotly.js@$version"
npm install --silent --no-audit --no-fund esbuild@0.28.2
cat > page.js <<END
const Plotly = require('plotly.js/lib/core'); // has scatter
Plotly.register([require('plotly.js/lib/bar'), require('plotly.js/lib/heatmap')]);
module.exports = Plotly;
END
npx esbuild page.js --bundle --minify --format=iife --global-name=Plotly --define:global=window \
  --loader:.css=text --legal-comments=eof --log-level=error --outfile="$target" \
  --banner:js="/* plotly.js v$version (scatter, bar, heatmap), MIT license, Plotly, Inc. */"
