"use strict";
// Asks for the figures once a second, and draws what changed between two answers.

const KEPT = 120; // Seconds that the charts show.
const history = [];
let before = null;

const $ = (id) => document.getElementById(id);
const make = (name, attributes = {}, ...children) => {
  const of = ["svg", "polyline", "line", "rect", "text", "title"].includes(name);
  const node = of ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
};
const number = (value, digits = value < 10 ? 1 : 0) =>
  value.toLocaleString("en", { maximumFractionDigits: digits, minimumFractionDigits: digits });
const bytes = (value) => {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (value >= 1024 && at + 1 < units.length) [value, at] = [value / 1024, at + 1];
  return `${number(value, at ? 1 : 0)} ${units[at]}`;
};

// The bound below which a share of the commands of an interval ended, in microseconds.
function quantile(classes, bounds, share) {
  const all = classes.reduce((sum, each) => sum + each, 0);
  if (!all) return null;
  let left = Math.ceil(all * share);
  const at = classes.findIndex((each) => (left -= each) <= 0);
  return (at < bounds.length ? bounds[at] : 2 * bounds[bounds.length - 1]) / 1000;
}

const kind = (live, name) => live.traffic.find((each) => each.kind === name);

// What happened from one answer to the next; nothing when the device began anew in between.
function since(old, now) {
  const seconds = (now.at_ns - old.at_ns) / 1e9;
  if (seconds <= 0 || kind(now, "read").commands < kind(old, "read").commands) return null;
  const rate = (name, field) => (kind(now, name)[field] - kind(old, name)[field]) / seconds;
  const took = (name, share) => {
    const [then, present] = [kind(old, name).classes, kind(now, name).classes];
    return quantile(present.map((value, at) => value - then[at]), now.latency_bounds_ns, share);
  };
  const spent = (now.dies.at_ns - old.dies.at_ns) || 0;
  return {
    seconds,
    commands: now.traffic.reduce((sum, each) => sum + rate(each.kind, "commands"), 0),
    read: rate("read", "bytes") / 1e6,
    write: rate("write", "bytes") / 1e6,
    readTook: [took("read", 0.5), took("read", 0.99)],
    writeTook: [took("write", 0.5), took("write", 0.99)],
    dies: spent > 0 ? now.dies.busy_ns.map((busy, at) => Math.min(1, (busy - old.dies.busy_ns[at]) / spent)) : null,
  };
}

function tiles(live, span) {
  const worst = (pair) => (pair[1] === null ? "–" : `${number(pair[1])} µs`);
  const shown = [
    ["Read", span ? `${number(span.read)} MB/s` : "–"],
    ["Written", span ? `${number(span.write)} MB/s` : "–"],
    ["Commands", span ? `${number(span.commands, 0)}/s` : "–"],
    ["Read p99 ≤", span ? worst(span.readTook) : "–"],
    ["Write p99 ≤", span ? worst(span.writeTook) : "–"],
    ["Temperature", `${number(live.temperature_celsius, 1)} °C`],
    ["Speed", `${number(live.speed_permille / 10, 0)} %`],
    ["Clients", String(live.clients.length)],
  ];
  $("tiles").replaceChildren(...shown.map(([name, value]) => make("div", { class: "tile" }, make("b", {}, value), make("span", {}, name))));
}

// Lines over the seconds that are kept: `lines` are name, class and what each second has of it. Of latencies the tenfold
// is a step.
function chart(id, lines, { least = 0, logarithmic = false } = {}) {
  const height = (value, top) => 100 * (logarithmic ? Math.log10(1 + value) / Math.log10(1 + top) : value / top);
  const values = lines.flatMap(([, , of]) => history.map(of)).filter((value) => value !== null && value !== undefined);
  const top = Math.max(least, ...values) * 1.1 || 1;
  const svg = make("svg", { viewBox: `0 0 ${KEPT} 100`, preserveAspectRatio: "none", role: "img" });
  for (const at of [0, 50, 100]) svg.append(make("line", { x1: 0, x2: KEPT, y1: at, y2: at }));
  const first = KEPT - history.length;
  for (const [, style, of] of lines) {
    const points = history.map((each, at) => [first + at, of(each)]).filter(([, value]) => value !== null && value !== undefined);
    const text = points.map(([x, value]) => `${x},${(100 - height(value, top)).toFixed(2)}`).join(" ");
    svg.append(make("polyline", { class: style, points: text }));
  }
  const last = history[history.length - 1];
  const key = lines.map(([name, style, of]) => {
    const value = last ? of(last) : null;
    return make("span", {}, make("i", { class: style }), `${name} ${value === null || value === undefined ? "–" : number(value)}`);
  });
  $(id).replaceChildren(svg, make("div", { class: "key" }, ...key, make("span", {}, `top ${number(top)}`)));
}

function charts() {
  chart("throughput", [["read", "read", (each) => each.read], ["written", "write", (each) => each.write]]);
  chart("latency", [
    ["read p50", "read faint", (each) => each.readTook[0]], ["p99", "read", (each) => each.readTook[1]],
    ["write p50", "write faint", (each) => each.writeTook[0]], ["p99", "write", (each) => each.writeTook[1]],
  ], { logarithmic: true });
  chart("temperature", [["°C", "write", (each) => each.celsius], ["speed %", "device faint", (each) => each.speed]], { least: 100 });
  chart("busy", [["host", "host", (each) => each.busy[0]], ["device", "device", (each) => each.busy[1]]], { least: 100 });
}

function row(...cells) {
  return make("tr", {}, ...cells.map((cell, at) => (cell instanceof Node ? make("td", {}, cell) : make("td", at ? { class: "n" } : {}, cell))));
}

function actors(live, old, span) {
  const seat = (actor, side) => {
    const style = actor.place === side ? `seat taken ${side}` : actor.place === "moving" ? "seat moving" : "seat";
    return make("span", { class: style, title: actor.place });
  };
  const rows = live.actors.map((actor, at) => {
    const moved = old && old.actors[at] ? actor.bytes[0] + actor.bytes[1] - old.actors[at].bytes[0] - old.actors[at].bytes[1] : 0;
    return row(actor.name, seat(actor, "host"), seat(actor, "device"), span ? number(moved / span.seconds / 1e6) : "–", number(actor.failed, 0));
  });
  $("actors").tBodies[0].replaceChildren(...rows);
  $("moves").textContent = number(live.moves, 0);
  $("recent").replaceChildren(...live.recent_moves.map((move) => {
    const ago = (live.at_ns - move.at_ns) / 1e9;
    const middle = move.mid_request ? ", in the middle of a request" : "";
    return make("li", {}, `${move.actor} to the ${move.to} in ${number(move.took_ns / 1000)} µs${middle}, ${number(ago)} s ago`);
  }));
}

// A square a die, a line a channel; the fuller the busier.
function dies(live, span) {
  const per = Math.max(1, live.dies.per_channel);
  const shares = span && span.dies ? span.dies : live.dies.busy_ns.map(() => 0);
  const lines = Math.ceil(shares.length / per);
  const size = 14;
  const svg = make("svg", { viewBox: `0 0 ${per * size + 24} ${lines * size}`, role: "img" });
  shares.forEach((share, die) => {
    const [channel, at] = [Math.floor(die / per), die % per];
    const square = make("rect", {
      x: 24 + at * size, y: channel * size, width: size, height: size, rx: 2,
      fill: `color-mix(in oklab, var(--write) ${Math.round(share * 100)}%, var(--line))`,
    });
    square.append(make("title", {}, `channel ${channel}, die ${at}: ${number(share * 100)} %`));
    svg.append(square);
    if (!at) svg.append(make("text", { x: 0, y: channel * size + 10 }, `ch ${channel}`));
  });
  $("dies").replaceChildren(svg);
}

function clients(live, old, span) {
  const rows = live.clients.map((client) => {
    const was = old && old.clients.find((each) => each.name === client.name && each.commands <= client.commands);
    const rate = (field) => (was && span ? (client[field] - was[field]) / span.seconds : null);
    const [commands, moved] = [rate("commands"), rate("bytes")];
    return row(client.name, commands === null ? "–" : number(commands, 0), moved === null ? "–" : number(moved / 1e6), number(client.commands, 0));
  });
  $("clients").tBodies[0].replaceChildren(...rows);
}

function figures(live) {
  const shown = [];
  const add = (name, value) => shown.push(make("div", {}, make("dt", {}, name), make("dd", {}, value)));
  const flash = live.figures.flash;
  if (flash) {
    if (flash.host_bytes) add("write amplification", number(flash.programmed_bytes / flash.host_bytes, 2));
    add("mapped", bytes(flash.mapped_blocks * 4096));
    add("live on flash", bytes(flash.live_bytes));
    add("free superblocks", number(flash.superblocks_free, 0));
    add("retired superblocks", number(flash.superblocks_retired, 0));
    add("erases, least and most", `${flash.erase_count_min}, ${flash.erase_count_max}`);
    add("pages programmed", number(flash.pages_programmed, 0));
    add("pages read", number(flash.pages_read, 0));
    add("relocated", bytes(flash.relocated_bytes));
  }
  const own = live.figures;
  if (own.raw_bytes_written) add("stored of written", `${number((100 * own.stored_bytes_written) / own.raw_bytes_written, 1)} %`);
  if (own.buffer_bytes_max) add("write buffer", `${bytes(own.buffer_bytes)} of ${bytes(own.buffer_bytes_max)}`);
  add("unrecovered reads", number(own.reads_unrecovered ?? 0, 0));
  add("recovered deaths", number(live.deaths, 0));
  for (const [at, name] of ["host's memory", "device's memory"].entries()) {
    if (live.domains[at].resident_bytes) add(name, bytes(live.domains[at].resident_bytes));
  }
  $("figures").replaceChildren(...shown);
}

function state(text, is_up) {
  $("state").textContent = text;
  $("state").className = `pill ${is_up ? "up" : "down"}`;
}

function show(status) {
  $("device").textContent = status.device;
  $("profile").textContent = `${status.profile}, ${bytes(status.capacity_bytes)}`;
  document.title = `${status.device} – Osier`;
  const live = status.live;
  state(!live ? "down" : live.serves ? "up" : "recovering", live && live.serves);
  if (!live) {
    before = null;
    return;
  }
  const span = before ? since(before, live) : null;
  if (span) {
    history.push({ ...span, celsius: live.temperature_celsius, speed: live.speed_permille / 10, busy: live.busy_permille.map((each) => each / 10) });
    if (history.length > KEPT) history.shift();
  }
  tiles(live, span);
  charts();
  actors(live, before, span);
  dies(live, span);
  clients(live, before, span);
  figures(live);
  before = live;
}

async function look() {
  try {
    const answer = await fetch("/api/status");
    if (!answer.ok) throw new Error((await answer.text()).trim());
    show(await answer.json());
    $("note").textContent = "";
  } catch (error) {
    state("no answer", false);
    $("note").textContent = error.message;
  }
  setTimeout(look, 1000);
}

look();
