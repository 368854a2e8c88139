"use strict";
// The page: one state, filled by `hello`, changed by `update`, drawn at most once a frame.

const SILENCE_MS = 35000;  // the trainer says something every ten seconds
const FIRST_RETRY_MS = 1000, LAST_RETRY_MS = 10000;
const COLORS = { wait: "--orange", score: "--brown", prepare: "--teal", train: "--blue", push: "--red", eval: "--purple", save: "--green", other: "--grey" };
const STAGE_WORDS = {
  wait: "waiting for samples", score: "waiting for scores", prepare: "preparing the batch", train: "training", push: "pushing weights",
  eval: "evaluating", save: "saving a checkpoint", "between stages": "between stages", starting: "starting",
};
const LEFT_OUT = { stale: "too stale", crash: "prompt kills servers", unscorable: "no reward judged them", timeout: "reward timed out", error: "reward failed", small_group: "too few of the group scored", truncated: "cut off, and masked", empty: "no token" };
const MISSING = { unscorable: "not judged", timeout: "timed out", error: "error" };
const REWARD_COLORS = ["--orange", "--green", "--purple", "--teal", "--brown", "--red"];

const color = (name) => `var(${name})`;
const byId = (id) => document.getElementById(id);
const state = { sections: {}, curves: {}, sequence: -1, clock: 0, ending: null, connected: false, old: false };
const completions = new Completions();
const named = (curves, name, label, tone, more = {}) => ({ curve: curves[name], name: label, color: color(tone), ...more });

const charts = [
  new Chart("Reward", "mean of a step", (curves) => [
    named(curves, "reward", "reward", "--blue", { noisy: true }),
    ...rewardNames(curves).map((name, index) => named(curves, `rewards/${name}/mean`, name, REWARD_COLORS[index % REWARD_COLORS.length], { dash: true })),
  ]),
  new Chart("Accuracy", "share of correct completions", (curves) => [
    named(curves, "accuracy", "training batches", "--grey", { noisy: true }),
    named(curves, "eval_accuracy", "held out, sampled", "--blue", { dots: true }),
    named(curves, "eval_greedy", "held out, greedy", "--orange", { dots: true }),
  ], { format: percent, low: 0, high: 1 }),
  new Chart("Seconds per stage", "of each step", (curves) => Object.keys(COLORS)
    .map((stage) => named(curves, `time/${stage}_s`, stage, COLORS[stage]))
    .filter(({ curve }) => curve && curve.y.some((value) => value > 0)), { low: 0, stacked: true }),
  new Chart("Staleness", "versions behind the policy", (curves) => [
    named(curves, "staleness/max", "largest", "--grey"), named(curves, "staleness/mean", "mean", "--blue"),
  ], { low: 0, least: 1 }),
  new Chart("Completion length", "tokens", (curves) => [named(curves, "completions/mean_length", "mean", "--blue", { noisy: true })], { low: 0 }),
  new Chart("Groups without spread, cut off", "shares", (curves) => [
    named(curves, "frac_reward_zero_std", "all rewards equal", "--purple", { noisy: true }),
    named(curves, "completions/clipped_ratio", "cut off at the limit", "--red", { noisy: true }),
  ], { format: percent, low: 0, high: 1 }),
  new Chart("Entropy", "of the policy, over computed samples", (curves) => [named(curves, "entropy", "entropy", "--teal", { noisy: true })], { low: 0 }),
  new Chart("KL", "to the reference, and to teachers", (curves) => [
    named(curves, "kl", "KL", "--purple", { noisy: true }), named(curves, "teacher/kl", "to teachers", "--orange", { noisy: true }),
  ], { low: 0 }),
  new Chart("Gradient norm", "before clipping", (curves) => [named(curves, "grad_norm", "norm", "--brown", { noisy: true })], { low: 0 }),
  new Chart("Reward spread", "within a batch", (curves) => [named(curves, "reward_std", "standard deviation", "--blue", { noisy: true })], { low: 0 }),
  new Chart("Off-policy", "each on its own scale", (curves) => [
    named(curves, "sampling/importance_sampling_ratio/mean", "ratio, mean", "--blue"),
    named(curves, "sampling/importance_sampling_ratio/max", "ratio, largest", "--grey"),
    named(curves, "sampling/sampling_logp_difference/mean", "logprob difference", "--red", { noisy: true }),
  ], { apart: true }),
  new Chart("Optimizer", "each on its own scale", (curves) => [
    named(curves, "learning_rate", "learning rate", "--green"), named(curves, "loss", "loss", "--brown", { noisy: true }),
    named(curves, "clip_ratio/region_mean", "clip ratio", "--purple"), named(curves, "entropy_coef", "entropy coefficient", "--teal"),
    named(curves, "chord/logprob", "log π of demonstrations", "--orange"),
  ], { apart: true }),
];
const FIRST_CHARTS = 4;  // above the completions, the others below
byId("charts").append(...charts.slice(0, FIRST_CHARTS).map((chart) => chart.node));
byId("more-charts").append(...charts.slice(FIRST_CHARTS).map((chart) => chart.node));

function rewardNames(curves) {
  const names = Object.keys(curves).filter((name) => /^rewards\/.+\/mean$/.test(name)).map((name) => name.slice(8, -5));
  return names.length > 1 ? names : [];  // one reward is the total
}

function duration(seconds) {
  if (seconds < 100) return `${Math.round(seconds)} s`;
  const minutes = Math.round(seconds / 60);
  return minutes < 100 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, "0")} min`;
}

// With the date, when it is not today's.
function timeOf(seconds) {
  const moment = new Date(seconds * 1000), time = moment.toLocaleTimeString([], { hourCycle: "h23" });
  const pad = (number) => String(number).padStart(2, "0");
  if (moment.toDateString() === new Date().toDateString()) return time;
  return `${moment.getFullYear()}-${pad(moment.getMonth() + 1)}-${pad(moment.getDate())} ${time}`;
}

function bytes(number) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let index = 0;
  while (number >= 1000 && index < units.length - 1) { number /= 1000; index++; }
  return `${number.toPrecision(3)} ${units[index]}`;
}

// Once: a screen reader reads an alert again whenever it is written.
function tell(id, words) {
  const node = byId(id);
  node.hidden = !words;
  if (node.textContent !== words) node.textContent = words;
}

function drawHead() {
  const { run = {}, now = {}, recent = {}, facts } = state.sections;
  byId("run").textContent = run.name ?? "GRPO run";
  byId("facts").textContent = facts ? `${[facts.model, ...facts.rewards.length ? [facts.rewards.join(" + ")] : []].join(" · ")} · ${facts.generation_batch_size / facts.num_generations} prompts × ${facts.num_generations} completions a step · staleness ≤ ${facts.max_staleness}` : "";
  const share = run.max_steps ? now.step / run.max_steps : 0;
  byId("progress-bar").style.width = `${Math.min(100, share * 100)}%`;
  byId("progress").setAttribute("aria-valuenow", now.step ?? 0);
  byId("progress").setAttribute("aria-valuemax", run.max_steps ?? 1);
  byId("steps").textContent = run.max_steps ? `step ${now.step} of ${run.max_steps}` : now.step ? `step ${now.step}` : "no step yet";
  const left = (run.max_steps - now.step) * recent.usual_step_s, still = state.ending ? null : state.sections.stands_still;
  byId("left").textContent = run.max_steps && now.step >= run.max_steps ? "all steps done" : left > 0 && !still && state.connected && !state.ending ? `about ${duration(left)} left` : "";
  tell("still", still ? `Standing still: ${still.because}${still.until_s ? `; ends by itself at about ${timeOf(still.until_s)}` : ""}` : "");
  tell("problem", now.problem && !state.ending ? `The loop does not move: ${now.problem}` : "");
  tell("waits", state.ending ? "" : now.waits?.reason ?? "");
}

// Not at the next frame: a tab in the background has none, and its title is all that is seen of it.
function drawTitle() {
  const { run = {}, now = {}, stands_still: still } = state.sections, reward = state.curves.reward?.latest;
  const gone = !state.connected && state.sequence >= 0;  // before the first answer nothing is known
  const word = state.ending?.word || (gone ? "not connected" : still ? "standing still" : "");
  const words = [word, `${now.step ?? 0}/${run.max_steps || "?"}`, reward === undefined ? "" : short(reward), run.name ?? "GRPO run"];
  document.title = words.filter(Boolean).join(" · ");
}

// Once a second: how long the stage has lasted.
function drawStage() {
  const { now } = state.sections;
  if (!now || state.ending || !state.connected) { byId("stage").textContent = ""; return; }
  const seconds = Math.max(0, Date.now() / 1000 + state.clock - now.stage_since_s);
  const limit = now.waits ? `, at most until ${timeOf(now.waits.until_s)}` : "";
  byId("stage").textContent = `${STAGE_WORDS[now.stage] ?? now.stage}${seconds >= 2 ? ` for ${duration(seconds)}` : ""}${limit}`;
}

function tile(label, value, note, way = "") {
  return make("li", {}, [make("span", { class: "soft", text: label }), make("b", { text: value }), make("span", { class: `soft ${way}`, text: note })]);
}

const COMPARED = 10;  // points at either end of a curve: one batch against another is mostly noise
const average = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
const variance = (values) => average(values.map((value) => (value - average(values)) ** 2)) * values.length / (values.length - 1);

// How far the end of a curve lies from its beginning; good or bad only beyond two standard errors.
function moved(name, format) {
  const curve = state.curves[name];
  if (!curve || curve.y.length < 2) return [curve ? `at step ${Math.round(curve.x[0])}` : "", ""];
  const count = Math.min(COMPARED, Math.floor(curve.y.length / 2)), first = curve.y.slice(0, count), last = curve.y.slice(-count);
  const difference = average(last) - average(first), steps = curve.counts.slice(0, count).reduce((sum, one) => sum + one, 0);
  const since = count === 1 ? `since step ${Math.round(curve.x[0])}` : `from the first ${steps} ${name.startsWith("eval_") ? "evaluations" : "steps"} to the last`;
  const noise = count < 3 ? Infinity : 2 * Math.sqrt((variance(first) + variance(last)) / count);
  const sign = difference > 0 ? "+" : difference < 0 ? "−" : "±";
  const way = Math.abs(difference) <= noise ? "" : difference > 0 ? "up" : "down";
  return [`${sign}${format(Math.abs(difference))} ${since}`, way];
}

const points = (value) => `${(value * 100).toFixed(1)} points`;

function drawTiles() {
  const { recent = {}, now = {} } = state.sections, { curves } = state;
  const tiles = [
    ["Reward", "reward", short], ["Accuracy, batch", "accuracy", percent], ["Held out, sampled", "eval_accuracy", percent], ["Held out, greedy", "eval_greedy", percent],
  ].filter(([, name]) => curves[name]).map(([label, name, format]) => tile(label + age(curves[name], curves), format(curves[name].latest), ...moved(name, format === percent ? points : short)));
  const steps = recent.steps ? `mean of ${recent.steps} steps` : "";
  if (recent.step_s) tiles.push(tile("Seconds per step", short(recent.step_s), steps));
  if (recent.tokens_per_s) tiles.push(tile("Tokens per second", Math.round(recent.tokens_per_s).toLocaleString("en"), steps));
  if (now.policy_version) tiles.push(tile("Policy version", String(now.policy_version), now.push_s === null ? "" : `pushed in ${short(now.push_s)} s`));
  byId("tiles").replaceChildren(...tiles);
}

function drawWaits() {
  const { recent = {}, facts, now = {} } = state.sections, shares = recent.shares ?? {};
  const parts = Object.entries(COLORS).map(([stage, tone]) => [stage, shares[stage] ?? 0, tone]).filter(([, share]) => share >= 0.005);
  byId("waits-span").textContent = parts.length ? `shares of the last ${recent.steps} steps` : "known after the first step";
  byId("shares").hidden = !parts.length;
  byId("shares").setAttribute("aria-label", parts.map(([stage, share]) => `${stage} ${percent(share)}`).join(", "));
  byId("shares").replaceChildren(...parts.map(([, share, tone]) => {
    const bar = make("div");
    bar.style.flexGrow = share; bar.style.background = color(tone);
    return bar;
  }));
  byId("shares-legend").replaceChildren(...parts.map(([stage, share, tone]) => {
    const mark = make("i");
    mark.style.color = color(tone);
    return make("li", {}, [mark, document.createTextNode(stage), make("b", { text: `${Math.round(share * 100)}\u00a0%` })]);
  }));
  byId("waits-words").textContent = parts.length ? waitWords(shares, facts) : "";
  byId("push").textContent = now.push_bytes ? `The last push: ${bytes(now.push_bytes)} in ${short(now.push_s)} s.` : "";
}

const MOST = 0.5, MUCH = 0.25, HARDLY = 0.1;  // shares of a step's time

function waitWords(shares, facts) {
  const sum = (...stages) => stages.reduce((total, stage) => total + (shares[stage] ?? 0), 0);
  const share = (...stages) => `${Math.round(sum(...stages) * 100)}\u00a0%`;
  const words = [`The trainer waits ${share("wait")} of the time for samples and ${share("score")} for scores.`];
  const overlaps = facts?.max_staleness > 0, busy = ["score", "prepare", "train", "push", "save", "other"];
  if (facts && !overlaps) words.push(`The rollout servers have nothing to sample for ${share(...busy)}: with max_staleness 0 they wait until the new weights are there.`);
  if (sum("score") > MUCH) words.push("A faster reward helps most: more workers or reward servers.");
  else if (sum("wait") > MOST) words.push(`More rollout servers help most${facts && !overlaps ? ", or max_staleness 1: then they sample while the trainer trains" : ""}.`);
  else if (facts && overlaps && sum("wait", "score") < HARDLY) words.push(`The rollout servers wait for the trainer: fewer of them${facts.max_staleness > 1 ? " or a smaller max_staleness" : ""} would do, or more GPUs for the trainer.`);
  return words.join(" ");
}

// New children for a node when `what` they show has changed, but not under the eyes of somebody who copies from it.
const filled = new Map();
let putOff = false;
function refill(id, what, build) {
  const node = byId(id), key = JSON.stringify(what ?? null);
  if (filled.get(id) === key) return;
  if (selectionIsIn(node)) { putOff = true; return; }
  filled.set(id, key);
  node.replaceChildren(...build());
}

function stateMark(text, kind) {
  return make("span", { class: `state ${kind}`, text });
}

function serverRow(url, mark, version, requests, reason, split = false) {
  const name = make("td", { text: url.replace(/^https?:\/\//, "") });
  if (reason) name.append(make("p", { class: "why", text: reason }));
  const cells = [name, make("td", {}, [mark]), make("td", { class: "number", text: version }), make("td", { class: "number", text: requests })];
  return make("tr", split ? { class: "split" } : {}, cells);
}

function drawServers() {
  const { replicas, reward_server: reward, teachers = [] } = state.sections, rows = [];
  for (const one of replicas?.shown ?? []) {
    const [text, kind] = !one.live ? ["no answer", "bad"] : one.member ? [one.state ?? "serving", "good"] : [one.state === "stale" ? "stale" : `${one.state ?? "new"}, no traffic`, "wait"];
    rows.push(serverRow(one.url, stateMark(text, kind), one.version === null ? "–" : `v${one.version}`, String(one.in_flight), one.reason));
  }
  if (replicas && replicas.count > replicas.shown.length) rows.push(make("tr", {}, [make("td", { colspan: 4, text: `and ${replicas.count - replicas.shown.length} more` })]));
  const scoring = [...reward ? [{ ...reward, name: "reward" }] : [], ...teachers ?? []];
  scoring.forEach(({ url, name, live, detail }, index) => {
    const [text, kind] = live === null ? ["not asked yet", "wait"] : live ? ["live", "good"] : ["no answer", "bad"];
    rows.push(serverRow(`${url} (${name})`, stateMark(text, kind), "–", "–", live ? null : detail, index === 0));
  });
  refill("replicas", [replicas, scoring], () => rows);
  byId("replicas-words").textContent = replicas ? `${replicas.serving} of ${replicas.count} rollout servers have the current weights` : "known once the trainer has found them";
}

function drawWarnings() {
  const { recent = {}, warnings } = state.sections, lost = Object.entries(recent.left_out ?? {}).filter(([, count]) => count);
  const missing = recent.missing ?? [], today = new Date().toDateString();
  refill("left-out", [lost, missing], () => [
    ...lost.map(([reason, count]) => make("span", { class: "chip lost", text: `${count.toLocaleString("en")} samples left out: ${LEFT_OUT[reason] ?? reason}` })),
    ...missing.map((one) => make("span", { class: one.status === "unscorable" ? "chip" : "chip lost", text: `reward ${one.reward}: ${one.count} of ${one.of} scores missing in the last step: ${MISSING[one.status] ?? one.status}` })),
  ]);
  refill("warnings", [warnings, lost.length, missing.length, today], () => {
    if (!warnings?.length) return [make("li", { class: "soft", text: lost.length || missing.length ? "No warning in this process's log." : "None: no warning in this process's log, no sample left out." })];
    return warnings.map((entry) => make("li", { class: entry.level }, [
      make("time", { datetime: new Date(entry.time_s * 1000).toISOString(), text: timeOf(entry.time_s) }),
      document.createTextNode(entry.text + (entry.count > 1 ? `  (${entry.count} times)` : "")),
    ]));
  });
}

let wanted = false;
function redraw() {
  if (wanted) return;
  wanted = true;
  requestAnimationFrame(() => {
    wanted = false;
    drawHead(); drawStage(); drawTiles(); drawWaits(); drawServers(); drawWarnings();
    for (const chart of charts) chart.render(state.curves);
  });
}

function take(sections, nowS) {
  Object.assign(state.sections, sections);
  state.clock = nowS - Date.now() / 1000;
  if ("groups" in sections || "facts" in sections) completions.update(state.sections.groups, state.sections.facts?.log_completions);
  drawTitle();
  redraw();
}

// A trainer that has just started in the run's folder has read no step yet: the page keeps what it had until it has.
function hello(data) {
  const sameRun = state.sections.run?.name === data.sections.run.name, empty = !Object.keys(data.curves).length;
  state.old = sameRun && empty && Object.keys(state.curves).length > 0;
  if (!sameRun) completions.forget();
  state.sections = {};
  if (!state.old) state.curves = Object.fromEntries(Object.entries(data.curves).map(([name, curve]) => [name, new Curve(curve)]));
  state.sequence = data.sequence;
  state.ending = null;
  byId("ending").hidden = true;
  connection("live", "good");
  take(data.sections, data.now_s);
}

function update(data) {
  if (state.old && data.steps.length) [state.curves, state.old] = [{}, false];
  for (const { sequence, step, values } of data.steps) {
    if (sequence <= state.sequence) continue;
    state.sequence = sequence;
    for (const [name, value] of Object.entries(values)) (state.curves[name] ??= new Curve({ merge: merges(name) })).add(step, value);
  }
  take(data.sections, data.now_s);
}

// As the trainer merges them: a spike of the gradient must not be averaged away.
const merges = (name) => name.endsWith("max") || name === "grad_norm" ? "max" : "mean";

function bye(data) {
  const word = data.reason ? "failed" : data.done ? "done" : "stopped";
  state.ending = { ...data, word };
  byId("ending").className = data.reason ? "alarm" : "alarm plain";
  byId("ending").textContent = data.reason ? `The run stopped at step ${data.step}: ${data.reason}`
    : word === "done" ? "The run is done; its report is in the run folder." : `The run was stopped after step ${data.step}; it goes on with --resume.`;
  byId("ending").hidden = false;
  drawTitle();
  redraw();  // nothing is left and nothing stands still any more
}

function connection(words, kind) {
  state.connected = kind === "good";
  document.body.classList.toggle("gone", !state.connected);
  const pill = byId("connection");
  if (pill.textContent !== words) pill.textContent = words;
  pill.className = `pill ${kind}`;
  drawTitle(); drawStage();
  redraw();
}

let source = null, watchdog = null, retryMs = FIRST_RETRY_MS;
function connect() {
  clearTimeout(watchdog);
  source = new EventSource("events");
  const heard = (handle) => (event) => {
    clearTimeout(watchdog);
    watchdog = setTimeout(lost, SILENCE_MS);
    retryMs = FIRST_RETRY_MS;
    handle(JSON.parse(event.data));
  };
  source.addEventListener("hello", heard(hello));
  source.addEventListener("update", heard(update));
  source.addEventListener("ping", heard(() => {}));
  source.addEventListener("bye", heard(bye));
  source.addEventListener("error", lost);
  watchdog = setTimeout(lost, SILENCE_MS);
}

function lost() {
  const refused = source.readyState === EventSource.CLOSED;  // an answer, but not the stream: 401, 403 or 503
  clearTimeout(watchdog);
  source.close();
  if (state.ending) connection("run ended", "wait");
  else connection(refused ? "too many pages or no token · trying again" : "trainer gone · trying again", "bad");
  setTimeout(connect, retryMs);
  retryMs = Math.min(retryMs * 1.5, LAST_RETRY_MS);
}

setInterval(drawStage, 1000);
addEventListener("resize", redraw);
document.addEventListener("selectionchange", () => { if (putOff) { putOff = false; redraw(); } });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
connect();
