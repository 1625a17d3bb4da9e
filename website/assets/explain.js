// `python -m vlmpatch explain`, for text that is pasted into a page: the same answers, and nothing is sent anywhere.
//
// It follows vlmpatch/tools/explain file by file (lines, logs, symptoms, diagnose), whose expressions, patterns
// and limits come from `symptoms.js`. tests/unit/test_site_explain.py holds both against the same logs.
//
// What Python does on bytes is done here on strings of one character a byte.
(function (root) {
  "use strict";

  // --- text and bytes ------------------------------------------------------------------------------------

  const BYTE_SPACE = /^[ \t\n\r\f\v]+|[ \t\n\r\f\v]+$/g;
  const SPACE = /[\s\x1c-\x1f\x85]+/gu;

  function toBytes(text) {
    let made = "";
    for (const byte of new TextEncoder().encode(text)) made += String.fromCharCode(byte);
    return made;
  }

  function toText(bytes) {
    return new TextDecoder("utf-8", { ignoreBOM: true }).decode(Uint8Array.from(bytes, (sign) => sign.charCodeAt(0)));
  }

  function count(text, word) {
    return text.split(word).length - 1;
  }

  class Known {
    constructor(data) {
      Object.assign(this, data.limits);
      this.data = data;
      const of = (name, flags) => new RegExp(data.expressions[name], flags);
      this.BEGINS = of("BEGINS", "y");
      this.BREAK = of("BREAK", "gi");
      this.ENTITY = of("ENTITY", "");
      this.ESCAPE = of("ESCAPE", "g");
      this.FLAT = of("FLAT", "g");
      this.NUMBER = of("NUMBER", "gi");
      this.SHARED = of("SHARED", "g");
      this.TAG = of("TAG", "gi");
      this.WITHIN = of("WITHIN", "");
      this.ESCAPED = of("ESCAPED", "g");
      this.BACKSLASH = of("BACKSLASH", "");
      this.OPENS = of("OPENS", "u");
      this.DIGITS = of("DIGITS", "gu");
      this.TRACED = of("TRACED", "uy");
      this.FENCE = of("FENCE", "uy");
      this.PRINTED = of("PRINTED", "uy");
      this.BARE_EXCEPTION = of("BARE_EXCEPTION", "uy");
      this.COLOUR = of("COLOUR", "gu");
      this.EXCEPTION = of("EXCEPTION", "uy");
      this.FRAME = of("FRAME", "uy");
      this.HEADED = of("HEADED", "uy");
      this.COLLECTIVE = of("COLLECTIVE", "gu");
      this.SPOKEN = of("NAMED", "u");
      this.RETYPED = of("RETYPED", "gu");
      this.VERSION = of("VERSION", "giu");
      this.SIZE = of("SIZE", "gu");
      this.CALL = of("CALL", "gu");
      this.QUOTED = of("QUOTED", "giu");
      this.KEY = of("KEY", "iuy");
      this.MARKED = of("MARKED", "uy");
      this.POINTED = of("POINTED", "uy");
      this.TITLED = of("TITLED", "giu");
      this.CLASS = of("CLASS", "gu");
      this.SAYS = of("SAYS", "iu");
      this.POINTS = of("POINTS", "uy");
      this.RAISES = of("RAISES", "uy");
      this.BEGINS_TO_RAISE = of("BEGINS_TO_RAISE", "u");
      this.QUOTE = of("TEXT", "uy");
      this.CALLED = of("CALLED", "gu");
      this.RAISED = of("RAISED", "u");
      this.SETTING = new RegExp(`^(?:${data.expressions.SETTING})$`, "u");
      this.SYMPTOM_FRAME = of("SYMPTOM_FRAME", "u");
      this.SHAPES_BEFORE = data.prefixes.map(([shape, names]) => [new RegExp(shape, "uy"), names]);
      this.failures = new Map(data.failures.map((failure) => [failure.id, failure]));
      this.symptoms = data.failures.flatMap((failure) => failure.symptoms.map((symptom) => [failure, symptom]));
      this.watched = { kind: "hint", watched: true };
    }

    squeeze(text) {
      let made = "";
      for (const sign of text) made += sign in this.data.folded ? this.data.folded[sign] : sign;
      return made.replace(SPACE, "").toLowerCase();
    }
  }

  function matched(expression, text) {
    expression.lastIndex = 0;
    return expression.exec(text);
  }

  // --- lines.py ------------------------------------------------------------------------------------------

  const LETTERS = { n: "\n", r: "\n", t: "\t" };
  const ENTITIES = { lt: "<", gt: ">", amp: "&", quot: '"', apos: "'", nbsp: "\xa0" };

  function unescaped(text) {
    return text.replace(/&(?:(lt|gt|amp|quot|apos|nbsp)|#(\d{1,7})|#x([0-9a-fA-F]{1,6}));/g, (_, name, decimal, hex) => {
      if (name) return ENTITIES[name];
      const code = decimal ? parseInt(decimal, 10) : parseInt(hex, 16);
      return code && code < 0x110000 ? String.fromCodePoint(code) : "\ufffd";
    });
  }

  /** The lines in `text` where it is JSON: a list of them, or one of a list that was spread over lines. */
  function listed(text) {
    const ofStrings = text[0] === '"' || ["[", '"'].includes(text.slice(1).replace(/^[ \t\n\r\f\v]+/, "")[0]);
    if (!ofStrings || !["]", '"'].includes(text.at(-1))) return [];
    try {
      const strings = [JSON.parse(toText(text))].flat(Infinity).filter((each) => typeof each === "string");
      return strings.flatMap((each) => each.split("\n"));
    } catch {
      return [];
    }
  }

  /** Whether a traceback lies in `line`, as a page shows it that knows no lines: two frames, or its head and one. */
  function flat(line) {
    const frames = count(line, 'File "');
    return frames > 1 || (frames === 1 && line.includes("Traceback (most recent call last): "));
  }

  function unfolded(line, known) {
    const bare = line.replace(/^[ \t\n\r\f\v]+|[ \t\n\r\f\v]+$/g, "");
    const lines = ["[", '"'].includes(bare[0]) ? listed(bare.replace(/,$/, "")) : [];
    if (lines.length) return lines.flatMap((whole) => unfolded(toBytes(whole), known));
    const letter = (_, code, sign) =>
      code ? toBytes(String.fromCharCode(parseInt(code, 16)).toWellFormed().replace("\ufffd", "?")) : LETTERS[sign] || sign;
    if (line.includes("\\n") && !line.startsWith('{"log":"')) {
      for (let turn = 0; turn < 2; turn += 1) {
        if (line.includes("\\n") && known.WITHIN.test(line)) {
          line = line.replaceAll('": "', '":\n').replaceAll(': \\"', ':\n\\"').replace(known.ESCAPE, letter);
        }
      }
    }
    if (line.startsWith("{") && line.includes("\\u")) line = line.replace(known.ESCAPE, letter);
    if (line.includes("<br") || line.includes("</td>") || (line.includes("&") && known.ENTITY.test(line))) {
      const text = toText(line.replace(known.BREAK, "\n").replace(known.NUMBER, "").replace(known.TAG, ""));
      line = toBytes(unescaped(text).replaceAll("\xa0", " "));
    }
    if (line.includes("]: Traceback ")) line = line.replace(known.SHARED, "\n");
    const long = line.length > known.LINE && line.includes("Traceback (most ");
    if (!line.includes("\n") && (flat(line) || long)) line = line.replace(known.FLAT, "\n");
    if (line.includes("\\") && line.search(known.ESCAPED) >= 0 && !known.BACKSLASH.test(line)) line = line.replace(known.ESCAPED, "$1");
    return line.split("\n");
  }

  const columns = (line) => line.replace(/[\x80-\xbf]/g, "").length;

  const BORDERS = [..."│┃║╮╯┐┘"].map(toBytes);

  /** Whether `line` is one of a box. */
  function boxed(line) {
    const text = line.replace(/[ \t\n\r\f\v]+$/, "");
    return BORDERS.some((border) => text.endsWith(border));
  }

  function brokenAt(given, known) {
    const width = given.reduce((most, line) => Math.max(most, columns(line)), 0);
    if (width < known.NARROWEST || width > known.WIDEST) return -1;
    return new Set(given.filter((line) => columns(line) === width)).size >= known.BROKEN ? width : -1;
  }

  function rejoined(given, first, known) {
    const width = brokenAt(given, known);
    const ended = (line, full) => {
      if (line.endsWith("...") && columns(line) >= known.NARROWEST) return line.slice(0, -3) + toBytes("…");
      return full || (known.COLUMNS.includes(columns(line)) && !boxed(line)) ? line + toBytes("…") : line;
    };
    const made = [];
    let held = "", begin = first, full = false;
    given.forEach((line, index) => {
      if (full && !matched(known.BEGINS, line)) {
        held += line;
      } else {
        if (index) made.push([begin, ended(held, full)]);
        [held, begin] = [line, first + index];
      }
      full = columns(line) === width && !boxed(line);
    });
    made.push([begin, ended(held, full)]);
    return made;
  }

  function* printed(given, first, known) {
    for (const [number, line] of rejoined(given, first, known)) {
      for (const whole of unfolded(line, known)) {
        for (const raw of whole.split("\r")) if (raw.replace(BYTE_SPACE, "")) yield [number, raw];
      }
    }
  }

  // --- logs.py -------------------------------------------------------------------------------------------

  const TRACEBACK = "Traceback (most recent call last)";
  const BOXED = '{"log":"';
  const PROGRESS = "'loss'";

  function clean(raw, at, known) {
    let text = toText(raw.slice(0, known.LINE));
    if (text.includes("\x1b")) text = text.replace(known.COLOUR, "");
    const source = [];
    let fresh = false;
    const wide = text.length >= known.WIDE;
    if (text.startsWith(BOXED)) {
      text = text.slice(BOXED.length).split('\\n","')[0].split('","stream":')[0].replaceAll('\\"', '"');
    }
    for (let turn = 0; turn < 6; turn += 1) {
      const fitting = known.SHAPES_BEFORE.map(([shape, names]) => [matched(shape, text), names]).find(([match]) => match && match[0]);
      if (!fitting) break;
      if (fitting[1]) source.push(fitting[0][1]);
      text = text.slice(fitting[0][0].length);
      fresh = true;
    }
    return { at, source: source.join(" "), text, fresh, wide };
  }

  /** What a person wrote above the error, or above a traceback that came without its first line. */
  function wordsOf(message, known) {
    if (!message.error && !message.cut) return message;
    const lines = message.text.split("\n"), end = lines.findIndex((line) => line === message.line || matched(known.TRACED, line));
    const words = lines.slice(0, end < 0 ? lines.length : end);
    return { ...message, text: words.join("\n"), line: words[0] || "", error: "", cut: false };
  }

  const SYNTAX = /[\^$.*+?()[\]{}|/\\]/g;
  const BLANK = String.raw`[\s\x1c-\x1f\x85]`;

  /** What lines of this log begin with that nobody has listed: it stands before what begins a traceback. */
  class Learned {
    constructor(known) {
      Object.assign(this, { known, shapes: new Map() });
    }

    without(line) {
      const { known, shapes } = this;
      if (line.text.includes(TRACEBACK) || line.text.includes('File "')) {
        const opens = known.OPENS.exec(line.text.slice(0, known.REACH));
        const apart = opens && opens.index > 0 && opens.index <= known.PREFIX && !matched(known.HEADED, line.text);
        if (apart) this.learn(line.text.slice(0, opens.index));
      }
      for (const shape of shapes.values()) {
        const match = matched(shape, line.text);
        if (match && match[0]) return { ...line, text: line.text.slice(match[0].length) };
      }
      return line;
    }

    learn(before) {
      const { known, shapes } = this;
      const prefix = before.replace(new RegExp(`${BLANK}+$`, "u"), "").replace(known.DIGITS, "0");
      if (!prefix || shapes.has(prefix) || shapes.size >= known.PREFIXES) return;
      const shape = prefix.split("0").map((part) => part.replace(SYNTAX, String.raw`\$&`)).join(String.raw`\p{Nd}{1,18}`);
      shapes.set(prefix, new RegExp(`${BLANK}{0,8}${shape} ?`, "uy"));
    }
  }

  class Source {
    constructor() {
      this.begin();
    }

    begin() {
      Object.assign(this, { lines: [], decisive: null, error: "", traced: false, steps: 0 });
    }

    add(line, known) {
      this.lines.push(line);
      if (this.lines.length > known.LINES) this.lines.splice(Math.floor(known.LINES / 2), 1);
    }

    /** Whether it is over where the block of a page is that holds it. */
    ends(known) {
      return Boolean(this.decisive) || this.lines.some((line) => matched(known.FRAME, line.text));
    }

    /** Whether the traceback is another's, and cut: no frame of it is of those that raise `error`. */
    endsBefore(error, known) {
      const sign = Object.hasOwn(known.data.launchers, error) ? known.data.launchers[error] : null;
      const frames = sign ? this.lines.filter((line) => matched(known.FRAME, line.text)) : [];
      return frames.length > 0 && !frames.some((line) => line.text.includes(sign));
    }

    take(known) {
      const { lines, error, steps, traced } = this;
      const frames = this.decisive ? [] : lines.filter((line) => matched(known.FRAME, line.text));
      const last = frames[frames.length - 1];
      const cut = frames.length > 0 && (traced || lines.slice(-known.BELOW).includes(last));
      const decisive = this.decisive || (cut ? last : lines[0]);
      this.begin();
      if (!lines.length) return null;
      const text = lines.map((line) => line.text).join("\n");
      return { at: decisive.at, source: decisive.source, error, line: decisive.text, text, steps, cut };
    }
  }

  class Messages {
    constructor(tell, known) {
      Object.assign(this, { tell, known, sources: new Map(), last: "", steps: 0, learned: new Learned(known) });
    }

    add(line) {
      line = this.learned.without(line);
      if (matched(this.known.FENCE, line.text)) {
        for (const source of this.sources.values()) if (source.ends(this.known)) this.finish(source);
      }
      if (this.sources.size >= this.known.SOURCES) this.close();
      let name = line.source;
      if (!name && this.last && this.continues(line)) name = this.last;
      this.last = name;
      if (!this.sources.has(name)) this.sources.set(name, new Source());
      this.place(this.sources.get(name), line);
    }

    continues(line) {
      const last = this.sources.get(this.last);
      const starts = line.text.includes(TRACEBACK) || matched(this.known.EXCEPTION, line.text);
      const going = last && (last.decisive || (last.lines.length && last.lines[last.lines.length - 1].wide));
      return going && !line.fresh && line.text.trim() && !starts;
    }

    place(source, line) {
      const { text } = line, { data } = this.known;
      if (source.traced && text && text === source.lines[source.lines.length - 1].text) return;
      if (!source.lines.length) source.steps = this.steps;
      let match;
      if (text.includes(TRACEBACK) || data.chained.some((words) => text.startsWith(words))) {
        this.finish(source);
        source.traced = text.includes(TRACEBACK);
        source.add(line, this.known);
      } else if (data.ownLines.some((words) => text.startsWith(words)) || text.includes("python -m vlmpatch explain")) {
        this.finish(source);
        source.add(line, this.known);
        this.finish(source);
      } else if ((match = this.exception(source, text))) {
        const error = match[1].split(".").pop();
        if (source.decisive || source.endsBefore(error, this.known)) this.finish(source);
        source.add(line, this.known);
        Object.assign(source, { decisive: line, error, traced: false, steps: this.steps });
      } else {
        source.add(line, this.known);
        if (!source.traced && source.lines.length >= this.known.LOOSE + (source.decisive ? 40 : 0)) this.finish(source);
      }
    }

    exception(source, text) {
      const { BARE_EXCEPTION, EXCEPTION } = this.known;
      if (source.traced && /^\p{L}/u.test(text)) return matched(BARE_EXCEPTION, text) || matched(EXCEPTION, text);
      return ["rror", "xception", "Iter", "Inter", "Ex"].some((part) => text.includes(part)) ? matched(EXCEPTION, text) : null;
    }

    finish(source) {
      const message = source.take(this.known);
      if (message) this.tell(message);
    }

    close() {
      for (const source of this.sources.values()) this.finish(source);
      this.sources.clear();
      this.last = "";
    }
  }

  function read(bytes, tell, known) {
    const messages = new Messages(tell, known);
    const look = (start, end) => {
      if (start >= end) return false;
      const given = bytes.slice(start, end).split("\n");
      messages.steps = count(bytes.slice(0, start), PROGRESS);
      for (const [number, raw] of printed(given, 1 + count(bytes.slice(0, start), "\n"), known)) {
        messages.steps += raw.includes(PROGRESS) ? 1 : 0;
        messages.add(clean(raw, number, known));
      }
      return brokenAt(given, known) > 0;
    };
    const whole = Math.max(bytes.lastIndexOf("\n"), bytes.lastIndexOf("\r")) + 1 || bytes.length;
    const broken = [look(0, whole), look(whole, bytes.length)].includes(true);
    messages.close();
    const counting = known.data.words.some((word) => bytes.includes(word));
    return { broken, steps: counting ? count(bytes, PROGRESS) : 0 };
  }

  // --- symptoms.py, failures.py --------------------------------------------------------------------------

  function numbersAt(text, at, known) {
    const match = /^\p{Nd}+(?:,\p{Nd}+)*/u.exec(text.slice(at, at + known.RUN));
    return match && match[0];
  }

  function fitsAt(rest, text, at, known) {
    const found = [];
    for (const [wildcard, literal] of rest) {
      if (wildcard === "#") {
        const numbers = numbersAt(text, at, known);
        if (numbers === null || !text.startsWith(literal, at + numbers.length)) return null;
        found.push(numbers.split(",").map((word) => BigInt(word.slice(-18))));
        at += numbers.length + literal.length;
      } else {
        const place = text.slice(at, at + known.RUN + literal.length).indexOf(literal);
        if (place < 0) return null;
        at += place + literal.length;
      }
    }
    return found;
  }

  function* occurrences([head, ...rest], text, known) {
    for (let at = text.indexOf(head); at >= 0; at = text.indexOf(head, at + 1)) {
      const found = fitsAt(rest, text, at + head.length, known);
      if (found) yield found;
    }
  }

  function within(pattern, text, known) {
    return !occurrences(pattern, text, known).next().done;
  }

  function leastOf([head, ...rest], known) {
    const text = [head, ...rest.map(([, literal]) => literal)].join("");
    const quote = text.slice(0, text.length - 1).lastIndexOf("'");
    const number = Math.max(0, ...[...text.matchAll(known.SIZE)].map((match) => match.index + match[0].length));
    return Math.max(known.LEFT, Math.floor((6 * text.length) / 10), quote + known.NAMED, number);
  }

  function beforeCut(literal, text, anywhere, kept, known) {
    for (let length = literal.length - 1; length >= 0; length -= 1) {
      const left = literal.slice(0, length) + "…";
      if (literal.length - length > known.WRAPPED && text.includes(left + literal.slice(length, length + known.WRAPPED))) return -kept;
      if (text.startsWith(left) || (anywhere && text.includes(left))) return length;
    }
    return -kept;
  }

  function leftAt([head, ...rest], text, at, known) {
    let kept = 0;
    for (const [wildcard, literal] of [["", head], ...rest]) {
      if (wildcard === "#") at += (numbersAt(text, at, known) || "").length;
      const ahead = at + (wildcard === "*" ? known.RUN : 0) + literal.length;
      const found = text.slice(at, ahead).indexOf(literal);
      if (found < 0) return kept + beforeCut(literal, text.slice(at, ahead), wildcard === "*", kept, known);
      at += found + literal.length;
      kept += literal.length;
    }
    return 0;
  }

  function leftIn(pattern, text, known, enough = 0) {
    if (!text.includes("…")) return false;
    const least = enough || leastOf(pattern, known), beginning = pattern[0].slice(0, least);
    for (let at = text.indexOf(beginning); at >= 0; at = text.indexOf(beginning, at + 1)) {
      if (leftAt(pattern, text, at, known) >= least) return true;
    }
    return false;
  }

  function differing(found) {
    if (found.length < 2 || found[0].length !== found[1].length) return [];
    return found[0].map((one, index) => [one, found[1][index]]).filter(([one, other]) => one !== other);
  }

  const RELATIONS = {
    "one apart": (found) => {
      const apart = differing(found);
      return apart.length === 1 && (apart[0][0] - apart[0][1] === 1n || apart[0][1] - apart[0][0] === 1n);
    },
    doubled: (found) => {
      if (found.length === 1 && found[0].length > 1 && found[0].at(-2) > 1n) found = [[found[0].at(-2)], [found[0].at(-1)]];
      const apart = differing(found);
      return apart.length === 1 && apart[0][1] === 2n * apart[0][0] && apart[0][1] > 0n;
    },
    halved: (found) => found.length === 2 && RELATIONS.doubled([found[1], found[0]]),
    "rows apart": (found) => {
      const apart = differing(found);
      if (apart.length !== 1 || found[0].length < 2 || found[0][0] === found[1][0]) return false;
      const [fewer, more] = apart[0][0] < apart[0][1] ? apart[0] : [apart[0][1], apart[0][0]];
      return fewer > 0n && more - fewer <= (fewer / 8n > 1n ? fewer / 8n : 1n);
    },
  };

  function unconfirmed(symptom, squeezed, known) {
    return Boolean(symptom.frames) && !squeezed.includes('file"') && !known.SYMPTOM_FRAME.test(squeezed);
  }

  function related(symptom, whole, known) {
    const numbered = symptom.every[0], [wildcard, literal] = numbered.at(-1);
    let found = [...occurrences(numbered, whole, known)];
    if (!found.length) found = [...occurrences([...numbered.slice(0, -1), [wildcard, literal.slice(0, 1)]], whole, known)];
    if (found.length) return found.some(RELATIONS[symptom.numbers]);
    return (symptom.some || symptom.frames || []).some((pattern) => within(pattern, whole, known));
  }

  function fits(symptom, squeezed, known) {
    const whole = squeezed.replaceAll("…", "");
    const shows = (pattern) => within(pattern, whole, known) || leftIn(pattern, squeezed, known);
    if (!(symptom.every || []).every(shows)) return false;
    if (symptom.some && !symptom.some.some(shows)) return false;
    if ((symptom.none || []).some((pattern) => within(pattern, whole, known))) return false;
    if (symptom.numbers && !related(symptom, whole, known)) return false;
    return framed(symptom, squeezed, whole, known);
  }

  function framed(symptom, squeezed, whole, known) {
    if (!symptom.frames || unconfirmed(symptom, squeezed, known)) return true;
    return symptom.frames.some((pattern) => within(pattern, whole, known));
  }

  /** Whether the message may show this, cut before it says so. */
  function perhaps(symptom, squeezed, known) {
    if (!squeezed.includes("…") || symptom.kind !== "error") return false;
    const whole = squeezed.replaceAll("…", "");
    const there = (pattern) => within(pattern, whole, known) || leftIn(pattern, squeezed, known, known.LEFT);
    return (symptom.every || []).every(there) && (!symptom.some || symptom.some.some(there)) &&
      !(symptom.none || []).some((pattern) => within(pattern, whole, known)) &&
      !(symptom.numbers && within(symptom.every[0], whole, known)) && framed(symptom, squeezed, whole, known);
  }

  // --- vocabulary.py -------------------------------------------------------------------------------------

  function lower(bytes) {
    return bytes.replace(/[A-Z]/g, (sign) => sign.toLowerCase());
  }

  /** Where `word` first stands in `plain`, or -1; a space at its end is where a word ends. */
  function standing(plain, word) {
    const bare = word.replace(/ +$/, "");
    let at = plain.indexOf(bare);
    while (at >= 0 && bare !== word && !/[^0-9a-z_]/.test(plain[at + bare.length] || "")) at = plain.indexOf(bare, at + 1);
    return at;
  }

  /** The engines that a run may have been under, or "unknown". */
  function enginesOf(texts, known) {
    const found = [];
    Object.entries(known.data.engines).forEach(([name, { runs, named }]) => {
      [runs, named].forEach((words, strength) => {
        for (const word of words) {
          const place = texts.map((text) => standing(text, toBytes(word))).find((at) => at >= 0);
          if (place !== undefined) found.push({ strength, place, name });
        }
      });
    });
    found.sort((one, other) => one.strength - other.strength || one.place - other.place || (one.name < other.name ? -1 : 1));
    if (!found.length) return ["unknown"];
    const first = found[0].name;
    const families = Object.entries(known.data.engines).filter(([name, { either }]) => either.length && [name, ...either].includes(first));
    const single = found.filter(({ name }) => families.some(([, { either }]) => either.includes(name)));
    return single.length ? single.filter(({ strength }) => strength === single[0].strength).map(({ name }) => name) : [first];
  }

  const FRACTION = 22; // signs of a number behind its point

  function occurs(plain, stem) {
    const places = [], inside = stem.includes("_") ? /^(?:[a-z][0-9a-z]|[0-9][0-9])/i : /^(?:[a-z_][0-9a-z]|[0-9][0-9])/i;
    const bare = stem.replace(/ +$/, "");
    for (let at = plain.indexOf(bare); at >= 0; at = plain.indexOf(bare, at + 1)) {
      const after = plain.slice(at + bare.length, at + bare.length + FRACTION);
      const goesOn = (bare !== stem && /^[0-9a-z_]/.test(after)) || (bare.endsWith("0") && /^\.?[0-9]{0,20}[1-9]/.test(after));
      const within = stem[0] === "'" ? !(at && /\p{L}/u.test(plain[at - 1])) : at && inside.test(plain[at - 1] + stem[0]);
      if (!goesOn && !within) places.push(at);
    }
    return places;
  }

  /** Where `stem` begins a word; `a~b` is two words, the second soon after the first. */
  function begins(plain, stem, known) {
    const [word, then] = stem.split("~");
    const places = occurs(plain, word);
    return then ? places.filter((at) => occurs(plain.slice(at + 1, at + known.SOON + then.length), then).length) : places;
  }

  /** Whether a stem of each group begins a word of `text`, all `near` one another, or in `title`. */
  function tells(text, groups, known, near = known.NEAR, title = "") {
    const spoken = (line) => known.SETTING.test(line) || matched(known.PRINTED, line) ? ".".repeat([...line].length) : line;
    const [plain, above] = [text, title].map((each) =>
      each.toLowerCase().replaceAll("\u2019", "'").replaceAll("`", "").split("\n").map(spoken).join(" ").trim().replace(SPACE, " "));
    const missing = groups.filter((stems) => !stems.some((stem) => begins(above, stem, known).length));
    if (!missing.length) return true;
    const [ats, ...rest] = missing.map((stems) => stems.flatMap((stem) => begins(plain, stem, known)));
    return ats.some((at) => rest.every((others) => others.some((other) => Math.abs(at - other) <= near)));
  }

  /** Whether a person's words are all that `symptom` asks for. */
  function isTold(symptom) {
    return Boolean(symptom.told) && !symptom.every && !symptom.some;
  }

  // --- grounds.py ----------------------------------------------------------------------------------------

  /** The line that `text` begins with, and those that it goes on in. */
  function saidIn(text, known) {
    const key = matched(known.KEY, text);
    if (key) return key[0];
    const [head, ...rest] = text.split("\n"), said = [head];
    for (const line of rest.slice(0, known.GOES_ON)) {
      const last = said[said.length - 1];
      if ([...last].length < known.WIDE && !/[:：]\s*$/.test(last)) break;
      if (matched(known.PRINTED, line.toLowerCase())) break;
      said.push(line);
    }
    return said.join(" ");
  }

  function framesOf(text, known) {
    return [...text.matchAll(known.CALL)].map(([, path, name, bare, called]) => {
      const whole = (path || bare).replaceAll("\\", "/").toLowerCase(), at = whole.lastIndexOf("-packages/");
      const near = at < 0 ? whole.split("/").slice(-known.FOLDERS).join("/") : whole.slice(at + "-packages/".length);
      return `/${near}:${(name || called || "").split(".").at(-1).toLowerCase()} `;
    });
  }

  /** Whether a traceback that is cut in the last of `frames` ends while that module is being imported. */
  function imports(frames) {
    const [above, last] = frames.slice(-2);
    return last !== undefined && last !== above && !above.includes("runpy") && last.endsWith(":<module> ");
  }

  function partOf(text, known, cut = false) {
    const frames = framesOf(text, known);
    const part = (frame) => Object.entries(known.data.parts).find(([, signs]) => signs.some((sign) => frame.includes(sign)));
    if (cut) frames.push(...[...codeIn(text, known).matchAll(known.CALLED)].map(([, name]) => `/:${name.toLowerCase()} `));
    const found = frames.reverse().map(part).find(Boolean);
    return found ? found[0] : "";
  }

  /** Whether `title` names an exception. */
  function namesError(title, known) {
    return [known.QUOTED, known.TITLED, known.CLASS].some((shape) => title.search(shape) >= 0);
  }

  /** The line of code that the traceback `text` ends in, and what it begins to say on the next. */
  function codeIn(text, known) {
    const lines = text.trimEnd().split("\n").filter((line) => !matched(known.POINTED, line));
    const call = new RegExp(known.CALL.source, "u");
    const end = lines.length - 1, last = (fits) => lines.findLastIndex(fits);
    const framed = last((line) => call.test(line)), pointed = last((line) => matched(known.POINTS, line));
    const raising = last((line) => matched(known.RAISES, line));
    let at = Math.max(end, 0);
    if (pointed > framed) at = pointed;
    else if (framed >= 0 && (framed === end || /^[ \t]/.test(lines[end]))) at = Math.max(framed + 1, raising);
    else if (end > 0) {
      const raised = known.RAISED.exec(lines[end - 1]);
      if (raised && raised[1].startsWith(lines[end].trim())) at -= 1;
    }
    const [found, below] = [at, at + 1].map((each) => (each < lines.length ? unmarked(lines[each], known) : ""));
    return known.BEGINS_TO_RAISE.test(found) && matched(known.QUOTE, below) ? found + below : found;
  }

  /** `line` without the number, the mark and the box that stand around it. */
  function unmarked(line, known) {
    return line.slice((matched(known.MARKED, line) || [""])[0].length).replace(/[ │]+$/u, "").trim();
  }

  function page(error, said, part, line, known) {
    const squeezed = known.squeeze(said), ends = (name) => error.toLowerCase().endsWith(name);
    const fitting = known.data.grounds.find((ground) =>
      (!ground.error.length || (error ? ground.error.some(ends) : ground.title)) &&
      (!ground.part.length || ground.part.includes(part)) &&
      (!ground.says.length || ground.says.some((pattern) => within(pattern, squeezed, known))) &&
      !ground.none.some((pattern) => within(pattern, squeezed, known)) &&
      (!ground.line.length || tells(line, ground.line, known)) &&
      !(ground.bare && squeezed && !squeezed.replace(/:+$/, "").endsWith("error")) &&
      (!ground.told.length || tells(said, ground.told, known)));
    return fitting ? fitting.page : "";
  }

  /** The page that the exception of `message` leads to, or nothing. */
  function pageOf({ error, line, text }, known) {
    const at = Math.max(text.lastIndexOf(line), 0);
    const code = codeIn(text.slice(0, at), known), raised = known.RAISED.exec(code), part = partOf(text, known);
    if (raised && error !== raised[1] && raised[1].startsWith(error)) return pageRaised(code, part, known);
    return page(error, saidIn(text.slice(at).trimStart(), known), part, code, known);
  }

  /** `said`, up to where the bracket or the quotation marks end that stand right before it. */
  function bracketed(before, said, known) {
    const [, closes] = known.data.brackets.find(([opens]) => before.endsWith(opens)) || ["", ""];
    const inside = closes ? said.split(closes)[0] : said;
    return closes === ")" && inside.includes("(") ? said : inside;
  }

  /** The page that words of `title` lead to, which names no exception; or nothing. */
  function pageTitled(title, known) {
    const found = title ? page("", title, "", "", known) : "", match = known.SAYS.exec(title);
    if (found || !match) return found;
    const words = title.slice(match.index + match[0].length);
    return known.data.anyError.map((error) => page(error, words, "", "", known)).find(Boolean) || "";
  }

  /** The line of `text` that `at` is in. */
  function lineAt(text, at) {
    return text.slice(text.lastIndexOf("\n", at - 1) + 1).split("\n")[0];
  }

  /** The page of an exception that a person quotes, in the title before elsewhere, and its line. */
  function pageQuoted(message, title, known) {
    const part = partOf(message.text, known);
    for (const text of [title, message.text]) {
      for (const match of text.matchAll(known.QUOTED)) {
        const before = text.slice(0, match.index).split("\n").at(-1);
        const words = bracketed(before, saidIn(text.slice(match.index), known), known);
        const found = page(match[1], words, part, before, known);
        if (found) return [found, lineAt(text, match.index)];
      }
    }
    const byTitle = pageRaised(title, part, known);
    if (byTitle) return [byTitle, title];
    for (const match of title.matchAll(known.TITLED)) {
      const error = match[1].replaceAll(" ", "").toLowerCase();
      const words = error === "keyerror" ? "" : title.slice(match.index + match[0].length);
      const found = page(error, words, part, title, known);
      if (found) return [found, title];
    }
    const [found, at] = pageUnnamed(message.text, part, known) || pageClassed(message.text, part, known) || ["", 0];
    return [found, lineAt(message.text, at)];
  }

  /** The page of what a line says that only one kind of exception says, and where. */
  function pageUnnamed(text, part, known) {
    const lowered = `\n${text.toLowerCase()}`;
    for (const [error, phrases] of Object.entries(known.data.saysOf)) {
      for (const at of phrases.map((phrase) => lowered.indexOf(phrase)).filter((at) => at >= 0)) {
        const begin = lowered.lastIndexOf("\n", at), words = saidIn(text.slice(begin), known);
        const found = page(error, words, part, words, known);
        if (found) return [found, begin];
      }
    }
    return null;
  }

  /** The page of a class that says enough by itself, and where. */
  function pageClassed(text, part, known) {
    for (const match of text.matchAll(known.CLASS)) {
      const found = known.data.vague.includes(match[1]) ? "" : page(match[1], "", part, "", known);
      if (found) return [found, match.index];
    }
    return null;
  }

  /** The page of the exception that the code `line` raises with words of its own, or nothing. */
  function pageRaised(line, part, known) {
    const match = known.RAISED.exec(line);
    return match ? page(match[1], `${match[1]}: ${match[2]}`, part, "", known) : "";
  }

  /** The page that a traceback without its exception leads to: by what its last line raises, or its part. */
  function pageCut(message, known) {
    const line = codeIn(message.text, known), part = partOf(message.text, known), head = matched(known.HEADED, message.text);
    const named = head && head[1] !== "Exception" ? page(head[1].split(".").at(-1), `${head[1]}: …`, part, line, known) : "";
    const within = imports(framesOf(message.text, known)) ? "import" : partOf(message.text, known, true);
    return pageRaised(line, part, known) || named || known.data.partsAlone[within] || "";
  }

  // --- diagnose.py ---------------------------------------------------------------------------------------

  class Findings {
    constructor(known) {
      Object.assign(this, {
        known, hits: [], counts: new Map(), errors: [], ranks: new Map(), versions: {}, shapes: new Map(),
        active: false, own: [], cut: null, loose: [], collectives: new Map(), differ: false, begun: new Set(), beheaded: new Set(),
      });
    }

    show(failure, symptom, message) {
      if (!this.ranks.has(failure.id)) this.ranks.set(failure.id, new Set());
      this.ranks.get(failure.id).add(message.source);
      return { failure, symptom, message };
    }

    take(message) {
      if (!this.begun.has(message.source)) {
        this.begun.add(message.source);
        if (/^(?: {2}|\t)/.test(message.text)) this.beheaded.add(message.at);
      }
      const { known } = this, squeezed = known.squeeze(message.text);
      for (const match of [...squeezed.matchAll(known.COLLECTIVE), ...squeezed.matchAll(known.RETYPED)]) {
        if (this.collectives.size >= known.COLLECTIVES) break;
        if (!this.collectives.has(match[1])) this.collectives.set(match[1], match[2]);
        this.differ = this.differ || this.collectives.get(match[1]) !== match[2];
      }
      const shape = squeezed.replace(/[0-9]/g, ""), seen = this.shapes.get(shape) || 0;
      if (seen >= known.ALIKE) return;
      this.shapes.set(shape, seen + 1);
      for (const match of message.text.matchAll(known.VERSION)) {
        const name = match[1].toLowerCase() === "pytorch" ? "torch" : match[1].toLowerCase();
        if (!(name in this.versions)) this.versions[name] = match[2].replace(/\.+$/, "");
      }
      this.active = this.active || known.data.ownTraces.some((trace) => message.text.includes(trace));
      const own = squeezed.startsWith("vlmpatch[");
      if (known.data.ownLines.some((words) => message.text.startsWith(words))) this.spoke(message);
      message = { ...message, text: message.text.slice(-known.TEXT) };
      if (message.cut) this.cut = message;
      const words = wordsOf(message, known);
      if (this.loose.length < known.KEPT && words.text.trim()) this.loose.push(words);
      known.symptoms.forEach(([failure, symptom], number) => {
        if (Boolean(symptom.own) !== own || !this.asked(symptom, message)) return;
        if (!fits(symptom, squeezed, known)) {
          if (!failure.foreign && perhaps(symptom, squeezed, known)) this.hits.push({ failure, symptom: { ...symptom, kind: "perhaps" }, message });
          return;
        }
        const hit = this.show(failure, symptom, message), already = this.counts.get(number) || 0;
        if (already < known.KEPT) {
          this.counts.set(number, already + 1);
          this.hits.push(hit);
        }
      });
      if (message.error) {
        this.errors.push(message);
        if (this.errors.length > known.KEPT) this.errors.splice(Math.floor(known.KEPT / 2), 1);
      }
    }

    tell() {
      const { known, loose } = this;
      loose.unshift(...loose.splice(Math.max(loose.findIndex(({ source }) => !source), 0), 1));
      const named = new Set(this.hits.filter(({ symptom }) => ["error", "echo"].includes(symptom.kind)).map(({ message }) => message));
      const unknown = first(this.errors.filter((error) => !named.has(error)), (each) => each.at);
      if (unknown && this.hits.some(({ symptom }) => symptom.kind === "error")) return;
      const [head, ...below] = loose.length ? loose[0].text.split("\n") : [""];
      const title = below.length || loose.length > 1 || this.cut ? head.slice(0, known.TITLE) : "";
      const told = known.symptoms.filter(([, each]) => isTold(each));
      for (const message of [...loose, ...(unknown ? [unknown] : [])]) {
        for (const [failure, symptom] of told) {
          const kind = failure.foreign && tells(title, symptom.told, known) ? "told" : symptom.kind;
          const doubtful = unknown || (kind === "perhaps" ? this.cut : null);
          if (tells(message.text, symptom.told, known, known.NEAR, title)) {
            if (doubtful) this.hits.push({ failure, symptom: { ...symptom, kind: "perhaps" }, message: doubtful });
            else this.hits.push(this.show(failure, { ...symptom, kind }, message));
          } else if (!doubtful && tells(message.text, symptom.told, known, known.APART)) {
            this.hits.push({ failure, symptom: { ...symptom, kind: "perhaps" }, message });
          }
        }
      }
    }

    spoke(message) {
      const { known } = this;
      if (this.own.length < known.KEPT) this.own.push(message);
      const named = known.SPOKEN.exec(message.text.trim().replace(SPACE, " "));
      if (named && known.squeeze(message.text).startsWith("vlmpatchwatch:") && known.failures.has(named[1])) {
        this.hits.push(this.show(known.failures.get(named[1]), known.watched, message));
      }
    }

    asked(symptom, message) {
      if (isTold(symptom)) return false;
      if (symptom.kind === "cut") return message.cut;
      if (symptom.kind !== "echo" || !message.error) return true;
      const begins = Math.max(message.text.lastIndexOf(message.line), 0), all = this.known.data.saysAll.includes(message.error);
      const said = this.known.squeeze(saidIn(all ? message.line : message.text.slice(begins), this.known));
      return [...(symptom.every || []), ...(symptom.some || [])].some((pattern) => within(pattern, said, this.known));
    }
  }

  function first(items, key) {
    return items.reduce((best, each) => (best === null || key(each) < key(best) ? each : best), null);
  }

  function choose(hits, unknown, cut, { watched, NAMES }) {
    const of = (kind, foreign) =>
      first(hits.filter((hit) => hit.symptom.kind === kind && hit.failure.foreign === foreign), (hit) =>
        8 * hit.message.at + (hit.symptom.patches ? 0 : 4) + (hit.symptom.told ? 0 : 2) +
        (kind === "told" && Math.min(...hit.symptom.told.map((stems) => stems.length)) > NAMES ? 1 : 0));
    const ours = of("error", false);
    if (ours) return [ours, ours.message];
    const theirs = of("error", true), message = first(unknown, (each) => each.at);
    if (theirs && (!message || theirs.message.at <= message.at)) return [theirs, theirs.message];
    if (message) return [null, message];
    const echo = of("echo", false) || of("told", false) || of("told", true) || of("echo", true);
    if (echo) {
      const doubtful = echo.failure.foreign && echo.symptom.kind === "echo";
      const mayBe = doubtful ? hits.find(({ symptom, failure }) => symptom.kind === "perhaps" && !failure.foreign && !isTold(symptom)) : null;
      return mayBe ? [null, mayBe.message] : [echo, echo.message];
    }
    if (cut) return [null, cut];
    const left = hits.find((hit) => hit.symptom === watched) || of("hint", true) || of("hint", false);
    if (left) return [left, left.message];
    const bare = hits.find((hit) => hit.symptom.kind === "perhaps");
    return [null, bare ? bare.message : null];
  }

  /** What a report is about, as its first line says. */
  function titleOf(loose, known) {
    return loose.length ? loose[0].text.split("\n")[0].slice(0, known.TITLE) : "";
  }

  /** Whether `hit` is a warning of ours in a report of which the title says that something else fails. */
  function beside({ failure, symptom }, title, known) {
    if (symptom.kind !== "hint" || symptom === known.watched || failure.foreign) return false;
    const squeezed = known.squeeze(title), { titleFails, titleWarns } = known.data;
    const quoted = [...(symptom.every || []), ...(symptom.some || [])].some((each) => within(each, squeezed, known));
    const fails = namesError(title, known) || tells(title, titleFails, known);
    return fails && !quoted && !tells(title, titleWarns, known);
  }

  /** What the kind of an error says that no symptom knows, and where; never against what may be ours. */
  function grounded({ known, loose, cut }, hits, unknown, hit, message) {
    const ours = hits.filter(({ symptom, failure }) => ["perhaps", "cut"].includes(symptom.kind) && !failure.foreign);
    if (ours.length) {
      const apart = message && message.cut && ours.every((each) => each.message !== message);
      const found = apart ? pageCut(message, known) : "";
      return known.failures.has(found) ? [known.failures.get(found), message] : [null];
    }
    let pages = [];
    if (!hit && message && message.error) {
      const length = ({ text }) => [...text].length, where = new Map();
      for (const each of [...unknown].sort((one, other) => length(one) - length(other) || one.at - other.at)) where.set(each.line, each);
      pages = [...unknown].sort((one, other) => one.at - other.at).map((each) => [pageOf(where.get(each.line), known), each]);
    } else if (!hit || (hit.failure.foreign && hit.symptom.kind === "echo")) {
      const title = titleOf(loose, known);
      pages = loose.map((each, number) => {
        const [found, line] = pageQuoted(each, number ? "" : title, known);
        return [found, { ...each, line: line || each.line }];
      });
      if (cut) pages.push([pageCut(cut, known), cut]);
      if (loose.length) pages.push([pageTitled(title, known), loose[0]]);
    }
    const found = pages.find(([page]) => known.failures.has(page));
    return found ? [known.failures.get(found[0]), found[1]] : [null];
  }

  /** Whether `hit` is an error that one of our failures ends in. */
  function ofOurs({ failure, symptom }) {
    return symptom.kind === "error" && !failure.foreign;
  }

  /** Whether `one` asks of the same message all that `other` found in it, and more. */
  function asksMore(one, other, known) {
    if (one.message !== other.message || !ofOurs(other) || one.failure === other.failure) return false;
    const squeezed = known.squeeze(other.message.text), alike = (patterns) => patterns.map((each) => JSON.stringify(each));
    const some = (other.symptom.some || []).filter((each) => within(each, squeezed, known));
    const found = new Set(alike([...(other.symptom.every || []), ...some])), asked = new Set(alike(one.symptom.every || []));
    const frames = ({ symptom }) => (symptom.frames || []).length;
    return [...found].every((each) => asked.has(each)) && asked.size + frames(one) > found.size + frames(other);
  }

  /** What the whole log bears out; where it begins in the middle of a message, what may be as well. */
  function asFarAsRead(findings, borneOut, gainsaid) {
    const borne = findings.hits.filter(borneOut);
    const unread = findings.hits.filter((hit) =>
      findings.beheaded.has(hit.message.at) && ofOurs(hit) && !gainsaid(hit) && !borneOut(hit));
    const doubts = borne.map((hit) => [hit, unread.filter((each) => asksMore(each, hit, findings.known))]);
    const doubted = new Set(doubts.filter(([, others]) => others.length).map(([hit]) => hit.message.at));
    const kept = borne.filter(({ failure, message }) => !(failure.foreign && doubted.has(message.at)));
    return [...kept, ...doubts.flatMap(([, others]) => others)].map((hit) =>
      doubted.has(hit.message.at) && ofOurs(hit) ? { ...hit, symptom: { ...hit.symptom, kind: "perhaps" } } : hit);
  }

  function conclude(findings, bytes, { broken, steps }) {
    const { known } = findings, joined = broken ? bytes.replaceAll("\n", "") : bytes;
    const caught = (message) => steps - message.steps >= known.GONE_ON;
    const lowered = [bytes, joined].map((text) => `${lower(text).replaceAll("\\_", "_")}\n`);
    const occurs = (fact, message) => {
      const within = toBytes(message.text.toLowerCase());
      return [...lowered, `${within}\n`, `${within.replaceAll("\n", "")}\n`].some((text) => standing(text, toBytes(fact)) >= 0);
    };
    const under = enginesOf(lowered, known);
    const saidOf = ({ symptom, message }) =>
      !symptom.told || isTold(symptom) || [message, ...findings.loose].some((each) => tells(each.text, symptom.told, known));
    const gainsaid = ({ symptom, message }) => (symptom.unseen || []).some((fact) => occurs(fact, message));
    const borneOut = (hit) =>
      (!hit.symptom.seen || hit.symptom.seen.some((fact) => occurs(fact, hit.message))) && !gainsaid(hit);
    const borne = asFarAsRead(findings, borneOut, gainsaid).filter(
      (hit) =>
        (!hit.symptom.under || hit.symptom.under.some((name) => under.includes(name))) &&
        saidOf(hit) &&
        (findings.differ || !hit.symptom.ranks) &&
        (hit.symptom.kind === "hint" || isTold(hit.symptom) || !(hit.failure.foreign && caught(hit.message))),
    );
    const undecided = new Set(borne.filter(({ failure, symptom, message }) =>
      symptom.kind === "perhaps" && !failure.foreign && !isTold(symptom) && message.text.includes("…")).map(({ message }) => message));
    const begun = findings.loose.some(({ text }) => text.includes(known.data.begun));
    const title = titleOf(findings.loose, known);
    const hearing = borne.filter(({ failure, symptom, message }) =>
      (symptom.kind !== "error" || !failure.foreign || !undecided.has(message)) &&
      (symptom.kind !== "hint" || symptom === known.watched || !begun),
    );
    const warned = hearing.filter((hit) => beside(hit, title, known)), spoken = hearing.filter((hit) => !warned.includes(hit));
    const hits = [...spoken, ...warned.map((hit) => ({ ...hit, symptom: { ...hit.symptom, kind: "perhaps" } }))];
    const named = new Set(hits.filter((hit) => ["error", "echo"].includes(hit.symptom.kind)).map((hit) => hit.message));
    const unknown = findings.errors.filter((each) => !named.has(each) && !caught(each));
    let [hit, message] = choose(hits, unknown, findings.cut, known);
    const [ground, said] = grounded(findings, spoken, unknown, hit, message);
    if (ground) [hit, message] = [null, message && message.cut ? message : said];
    const maybe = hits.filter((each) => ["perhaps", "cut"].includes(each.symptom.kind) && each.message === message);
    return {
      hit,
      first: message,
      ground,
      ranks: hit ? [...findings.ranks.get(hit.failure.id)].filter(Boolean).sort() : [],
      versions: findings.versions,
      active: findings.active,
      perhaps: hit ? [] : [...new Set(maybe.map((each) => each.failure))],
    };
  }

  // --- explain.py ----------------------------------------------------------------------------------------

  function printable(text, length = 240) {
    const kept = text.slice(0, 4 * length).replace(/[\p{C}\p{Z}]/gu, " ").trim().replace(/ +/g, " ");
    return kept.length <= length ? kept : `${kept.slice(0, length - 1)}…`;
  }

  function seen({ hit, first: message }, known) {
    if (!hit) return message ? printable(message.line) : "";
    const text = known.squeeze(hit.message.text);
    const there = [...(hit.symptom.every || []), ...(hit.symptom.some || [])].filter((pattern) => within(pattern, text, known));
    const longest = there.reduce((best, each) => (best && best[0].length >= each[0].length ? best : each), null);
    let { line } = hit.message;
    if (longest && !within(longest, known.squeeze(line), known)) {
      const begins = longest[0].slice(0, 12);
      line = hit.message.text.split("\n").find((each) => known.squeeze(each).includes(begins)) || line;
    }
    return printable(line);
  }

  /** The answer to `text`; `shortened` where only its end was read. */
  function explain(text, data) {
    const known = new Known(data);
    let bytes = toBytes(text);
    const shortened = bytes.length > known.ENDS;
    if (shortened) bytes = bytes.slice(bytes.indexOf("\n", bytes.length - known.ENDS) + 1);
    const findings = new Findings(known);
    const rest = read(bytes, (message) => findings.take(message), known);
    findings.tell();
    findings.active = findings.active || known.data.ownWords.some((words) => bytes.includes(words));
    const found = conclude(findings, bytes, rest);
    const ours = found.hit && !found.hit.failure.foreign ? found.hit : null;
    return {
      failure: ours ? ours.failure.id : null,
      kind: ours ? ours.symptom.kind : null,
      instead: found.hit && !ours ? found.hit.failure.id : null,
      ground: found.ground ? found.ground.id : null,
      perhaps: found.perhaps.length ? found.perhaps[0].id : null,
      cut: Boolean(found.first && found.first.cut),
      seen: found.first ? seen(found, known) : null,
      line: found.first ? found.first.at : null,
      ranks: found.ranks,
      versions: found.versions,
      active: found.active,
      patches: ours ? ours.symptom.patches || ours.failure.patches : [],
      empty: !bytes.replace(BYTE_SPACE, ""),
      shortened,
    };
  }

  root.vlmpatchExplain = explain;
})(globalThis);
