"use strict";
// The last groups: a prompt, and its completions side by side with what each got. All text goes through textContent.

const HEAD = 220, TAIL = 140;  // characters of a long text before its "more": the answer stands at the end
const abridged = (characters) => `${characters.slice(0, HEAD).join("")} […] ${characters.slice(-TAIL).join("")}`;

class Completions {
  constructor() {
    this.place = document.getElementById("groups");
    this.words = document.getElementById("completions-words");
    this.button = document.getElementById("hold");
    this.held = this.shown = this.newest = this.caption = null;
    for (const [node, name] of [[this.place, "focusout"], [document, "selectionchange"]]) {
      node.addEventListener(name, () => setTimeout(() => this.catchUp()));  // the focus is elsewhere only after it has left
    }
    this.button.addEventListener("click", () => this.held ? this.go() : this.hold());
  }

  // A step's groups, or null when there are none yet.
  update(groups, logged) {
    this.newest = groups;
    if (groups) this.catchUp();
    else if (!this.held && !this.read) {  // a trainer that has just started has none yet
      this.caption = logged === false ? "Not kept: logging.log_completions is off." : "They come with the next step.";
      this.shown = null;
      this.place.replaceChildren();
    }
    this.say();
  }

  // Another run has come to this address.
  forget() {
    this.held = this.shown = this.newest = this.caption = null;
    this.place.replaceChildren();
  }

  // Somebody copies, or scrolls with the keys.
  get read() {
    return selectionIsIn(this.place) || this.place.contains(document.activeElement);
  }

  catchUp() {
    if (!this.newest || this.newest === this.shown || this.held || this.read) return;
    this.render(this.newest);
    this.say();
  }

  // Nothing may move under the eyes of somebody who reads.
  hold() {
    this.held = this.shown;
    this.say();
  }

  go() {
    this.held = null;
    if (this.newest) this.render(this.newest);
    this.say();
  }

  say() {
    const newer = this.shown && this.newest && this.newest.step > this.shown.step;
    if (this.caption) this.words.textContent = this.caption + (newer && !this.held ? " The next ones wait while you are in here." : "");
    this.button.setAttribute("aria-pressed", String(Boolean(this.held)));
    this.button.textContent = !this.held ? "Hold" : newer ? `Held · go on to step ${this.newest.step}` : "Held · go on";
  }

  render(groups) {
    this.shown = groups;
    const most = groups.count > groups.groups.length;
    this.caption = `Step ${groups.step}` + (most
      ? `: of ${groups.count} prompts the ${groups.groups.length} whose rewards differ most, best completion first.`
      : `: best completion first.`);
    this.place.replaceChildren(...groups.groups.map((group) => this.group(group)));
  }

  group(group) {
    const noun = group.completions.some((one) => one.episode) ? "episodes" : "completions";
    const counted = group.completions.length < group.count
      ? `${group.completions.length} of ${group.count} ${noun}, the best and the worst` : `${group.count} ${noun}`;
    const unscored = group.unscored ? ` · ${group.unscored} without a score` : "";
    return make("article", { class: "group" }, [
      make("h3", { text: `Prompt ${group.position + 1}` }),
      this.text(group.prompt, "prompt"),
      make("p", { class: "soft", text: `row ${group.row} · ${counted}${unscored}` }),
      make("ul", { class: "side", tabindex: "0", "aria-label": `Completions of prompt ${group.position + 1}` }, group.completions.map((completion) => this.completion(completion))),
    ].flat());
  }

  completion(one) {
    const way = one.advantage > 0 ? " up" : one.advantage < 0 ? " down" : "";
    const total = one.total === null ? "not scored" : short(one.total);
    const chips = [make("span", { class: `chip total${way}`, text: total, title: "total reward" })];
    for (const reward of one.rewards) {
      const lost = reward.status !== "ok";
      chips.push(make("span", { class: lost ? "chip lost" : "chip", text: `${reward.name} ${lost ? reward.status : short(reward.score)}` }));
    }
    if (one.advantage !== null) {
      chips.push(make("span", { class: "chip", text: `adv ${one.advantage > 0 ? "+" : ""}${short(one.advantage)}`, title: "advantage" }));
    }
    if (one.episode) chips.push(...this.ending(one.episode));
    else if (one.finish !== "stop") chips.push(make("span", { class: "chip lost", text: one.finish === "length" ? "cut off" : one.finish }));
    if (!one.episode) chips.push(make("span", { class: "chip", text: `${one.tokens} tokens` }));
    if (one.version !== null) chips.push(make("span", { class: "chip", text: `v${one.version}`, title: "policy version of its oldest token" }));
    const why = one.rewards.filter((reward) => reward.detail)
      .map((reward) => make("p", { class: "why", text: `${reward.name}: ${reward.detail}` }));
    const said = one.episode ? this.conversation(one.episode) : this.text(one.text);
    return make("li", one.episode ? { class: "told" } : {}, [make("div", { class: "chips" }, chips), ...why, ...said]);
  }

  // How an episode ended, and how much of it was trained on.
  ending(episode) {
    const chips = [make("span", { class: episode.status === "completed" ? "chip" : "chip lost", text: episode.status + (episode.cause ? `, cause ${episode.cause}` : "") })];
    if (episode.attempt) chips.push(make("span", { class: "chip", text: `attempt ${episode.attempt + 1}` }));
    chips.push(make("span", { class: "chip", text: `${episode.num_turns} turn${episode.num_turns === 1 ? "" : "s"}` }));
    chips.push(make("span", { class: "chip", text: `${episode.num_trained} of ${episode.num_sampled} tokens trained` }));
    return chips;
  }

  // The messages behind the prompt, and below them the turns that are in none of them.
  conversation(episode) {
    const messages = episode.messages.map((said) => this.message(said));
    if (episode.num_left_out) {
      messages.splice(episode.left_out_at, 0, make("li", { class: "soft", text: `… ${episode.num_left_out} messages left out …` }));
    }
    const parts = [make("ol", { class: "talk" }, messages)];
    if (episode.aside.length) {
      const most = episode.num_aside > episode.aside.length ? `, the first ${episode.aside.length} of ${episode.num_aside}` : "";
      parts.push(make("p", { class: "soft", text: `Sampled beside this conversation${most}:` }));
      parts.push(make("ol", { class: "talk" }, episode.aside.map((said) => this.message(said))));
    }
    return parts;
  }

  message(said) {
    const { turn } = said, kind = !turn ? "observation" : turn.left_out ? "masked" : "trained";
    const parts = [make("p", { class: "soft" }, [make("b", { text: said.role }), said.name ? ` ${said.name}` : ""])];
    if (turn?.fork) parts.push(make("p", { class: "soft", text: turn.fork }));
    if (turn) {
      const chips = [[turn.left_out ? `masked: ${turn.left_out}` : "trained", turn.left_out ? " lost" : " trained"], [`${turn.num_tokens} tokens`, ""]];
      if (turn.versions) chips.push([turn.versions, ""]);
      if (turn.reward !== null) chips.push([`reward ${short(turn.reward)}`, ""]);
      if (turn.finish) chips.push([turn.finish === "length" ? "cut off" : turn.finish, " lost"]);
      parts.push(make("div", { class: "chips" }, chips.map(([text, way]) => make("span", { class: `chip${way}`, text }))));
    }
    if (said.thoughts) parts.push(make("p", { class: "soft", text: "thinks" }), ...this.text(said.thoughts));
    if (said.text || !(said.calls.length || said.thoughts)) parts.push(...this.text(said.text));
    for (const call of said.calls) {
      parts.push(make("p", { class: "soft" }, ["calls ", make("b", { text: call.name })]), ...this.text(call.arguments));
    }
    return make("li", { class: kind }, parts);
  }

  // A text with a "more" when it is long.
  text(whole, kind = "") {
    const characters = [...whole], long = characters.length > HEAD + TAIL + 80;  // a string counts an emoji twice
    const place = make("pre", { class: kind, text: long ? abridged(characters) : whole || "(empty)" });
    if (!long) return [place];
    const button = make("button", { type: "button", class: "more", "aria-expanded": "false", text: "more" });
    button.addEventListener("click", () => {
      const open = button.getAttribute("aria-expanded") === "false";
      button.setAttribute("aria-expanded", String(open));
      button.textContent = open ? "less" : "more";
      place.textContent = open ? whole : abridged(characters);
      if (open) this.hold();
    });
    return [place, button];
  }
}
