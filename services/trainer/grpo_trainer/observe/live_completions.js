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
    const counted = group.completions.length < group.count
      ? `${group.completions.length} of ${group.count} completions, the best and the worst` : `${group.count} completions`;
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
    if (one.finish !== "stop") chips.push(make("span", { class: "chip lost", text: one.finish === "length" ? "cut off" : one.finish }));
    chips.push(make("span", { class: "chip", text: `${one.tokens} tokens` }));
    if (one.version !== null) chips.push(make("span", { class: "chip", text: `v${one.version}`, title: "policy version of its oldest token" }));
    const why = one.rewards.filter((reward) => reward.detail)
      .map((reward) => make("p", { class: "why", text: `${reward.name}: ${reward.detail}` }));
    return make("li", {}, [make("div", { class: "chips" }, chips), ...why, ...this.text(one.text)]);
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
