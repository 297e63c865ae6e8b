// A line chart over time (uPlot) in the colours of the page, and a sparkline.
import { html, signal, useEffect, useRef } from "../vendor/ui.js";
import { Plot } from "../vendor/plot.js";

const HEIGHT_PX = 150;
const LABEL_PX = 76;
/** Of a time with seconds, and what keeps it from the next. */
const HUES = ["--line-1", "--line-2", "--line-3", "--line-4", "--line-5"];

const dark = matchMedia("(prefers-color-scheme: dark)");
const scheme = signal(dark.matches);
dark.addEventListener("change", () => (scheme.value = dark.matches));

/** A colour as a canvas takes it: a custom property itself reads `light-dark(…)`. */
function resolved(element, name) {
  element.style.color = `var(${name})`;
  const { color } = getComputedStyle(element);
  element.style.color = "";
  return color;
}

/** A time of the axis; seconds only where the ticks are that close. */
function clock(at, ticks) {
  const close = ticks.at(-1) - ticks[0] < 600;
  return new Date(at * 1000).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", second: close ? "2-digit" : undefined });
}

/** `series`: [{ label, values }] over `times` (Unix seconds); `show(value)` renders an axis value. */
export function Chart({ title, metric, times, series, show }) {
  const box = useRef(null);
  const plot = useRef(null);
  const shape = series.map((one) => one.label).join("\n");

  useEffect(() => {
    const colour = (name) => resolved(box.current, name);
    const axis = { stroke: colour("--faint"), grid: { stroke: colour("--edge"), width: 1 }, ticks: { show: false } };
    plot.current = new Plot(
      {
        width: box.current.clientWidth || 300,
        height: HEIGHT_PX,
        legend: { live: true },
        cursor: { drag: { x: false, y: false } },
        scales: { y: { range: (_, low, high) => [Math.min(0, low ?? 0), (high > 0 ? high : 1) * 1.1] } },
        axes: [{ ...axis, space: LABEL_PX, values: (_, ticks) => ticks.map((at) => clock(at, ticks)) }, { ...axis, size: 62, values: (_, ticks) => ticks.map((value) => show(value)) }],
        series: [
          { value: (_, at) => (at === null ? "" : new Date(at * 1000).toLocaleTimeString("en-GB")) },
          ...series.map((one, at) => ({
            label: one.label,
            stroke: colour(HUES[at % HUES.length]),
            width: 1.5,
            points: { show: false },
            value: (_, value) => (value === null ? "–" : show(value)),
          })),
        ],
      },
      [times, ...series.map((one) => one.values)],
      box.current,
    );
    const observer = new ResizeObserver(() => plot.current?.setSize({ width: box.current.clientWidth, height: HEIGHT_PX }));
    observer.observe(box.current);
    return () => {
      observer.disconnect();
      plot.current.destroy();
      plot.current = null;
    };
  }, [shape, scheme.value]);

  useEffect(() => {
    plot.current?.setData([times, ...series.map((one) => one.values)]);
  }, [times]);

  const bare = series.every((one) => one.values.every((value) => value === null));
  return html`<figure class="chart"><figcaption title=${metric}>${title} <code class="faint">${metric}</code>
    ${bare && html` <span class="faint">no value in this time</span>`}</figcaption><div ref=${box}></div></figure>`;
}
