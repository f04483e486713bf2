/** How loud both sides are, drawn at most 30 times a second and not at all while nobody can see it. */

/**
 * @typedef {object} Meter
 * @property {AnalyserNode} analyser
 * @property {MediaStreamAudioSourceNode} source
 * @property {Float32Array<ArrayBuffer>} samples
 * @property {HTMLElement} shown an element with role="meter" and a .fill in it
 * @property {HTMLElement | null} also gets the level as `--level`, too
 * @property {number} level 0..1, falling slowly
 */

const FRAME_MS = 1000 / 30;
const SPOKEN_MS = 1_000;
const SILENT_MS = 8_000;
const FLOOR_DB = -60;
const FALL = 0.82;

export class Meters {
  /**
   * @param {AudioContext} context
   * @param {(silent: boolean) => void} onSilent no sound at all from the microphone for {@link SILENT_MS}; sound again
   */
  constructor(context, onSilent) {
    this.context = context;
    this.onSilent = onSilent;
    /** @type {Map<string, Meter>} */
    this.meters = new Map();
    this.frame = 0;
    this.drawnAt = 0;
    this.spokenAt = 0;
    this.soundAt = performance.now();
    this.silent = false;
    this.silenceExpected = false;
    this.listening = new AbortController();
    document.addEventListener("visibilitychange", () => this.#run(), { signal: this.listening.signal });
    this.#run();
  }

  /**
   * @param {"microphone" | "voice"} name a second stream of this name replaces the first
   * @param {MediaStream} stream
   * @param {HTMLElement} shown
   * @param {HTMLElement | null} [also]
   */
  watch(name, stream, shown, also = null) {
    this.meters.get(name)?.source.disconnect();
    const source = this.context.createMediaStreamSource(stream);
    const analyser = new AnalyserNode(this.context, { fftSize: 1024 });
    source.connect(analyser);
    const samples = new Float32Array(analyser.fftSize);
    this.meters.set(name, { analyser, source, samples, shown, also, level: 0 });
    this.soundAt = performance.now();
  }

  /** @param {boolean} expected the microphone is muted */
  expectSilence(expected) {
    this.silenceExpected = expected;
    this.soundAt = performance.now();
    this.#tellSilent(false);
  }

  stop() {
    this.listening.abort();
    cancelAnimationFrame(this.frame);
    for (const meter of this.meters.values()) {
      meter.source.disconnect();
      draw(meter, 0);
      speak(meter, 0);
    }
    this.meters.clear();
  }

  #run() {
    cancelAnimationFrame(this.frame);
    this.soundAt = performance.now();
    if (!document.hidden && !this.listening.signal.aborted) this.frame = requestAnimationFrame((at) => this.#tick(at));
  }

  /** @param {number} at */
  #tick(at) {
    this.frame = requestAnimationFrame((next) => this.#tick(next));
    if (at - this.drawnAt < FRAME_MS - 2) return;
    this.drawnAt = at;
    const speaks = at - this.spokenAt >= SPOKEN_MS;
    if (speaks) this.spokenAt = at;
    for (const [name, meter] of this.meters) {
      meter.analyser.getFloatTimeDomainData(meter.samples);
      const rms = rootMeanSquare(meter.samples);
      draw(meter, Math.max(share(rms), meter.level * FALL));
      if (speaks) speak(meter, meter.level);
      if (name === "microphone") this.#hear(rms > 0, at);
    }
  }

  /** @param {boolean} sound @param {number} at */
  #hear(sound, at) {
    if (sound || this.silenceExpected) this.soundAt = at;
    this.#tellSilent(at - this.soundAt > SILENT_MS);
  }

  /** @param {boolean} silent */
  #tellSilent(silent) {
    if (silent === this.silent) return;
    this.silent = silent;
    this.onSilent(silent);
  }
}

/** @param {Float32Array} samples */
function rootMeanSquare(samples) {
  let sum = 0;
  for (const sample of samples) sum += sample * sample;
  return Math.sqrt(sum / samples.length);
}

/** Where a level lies between silence and full scale, by decibels. @param {number} rms @returns {number} 0..1 */
export function share(rms) {
  if (rms <= 0) return 0;
  return Math.min(1, Math.max(0, 1 - (20 * Math.log10(rms)) / FLOOR_DB));
}

/** @param {Meter} meter @param {number} level */
function draw(meter, level) {
  meter.level = level;
  const fill = /** @type {HTMLElement | null} */ (meter.shown.querySelector(".fill"));
  if (fill) fill.style.transform = `scaleX(${level.toFixed(3)})`;
  meter.also?.style.setProperty("--level", level.toFixed(3));
}

/** For those who do not see the bar. @param {Meter} meter @param {number} level */
function speak(meter, level) {
  meter.shown.setAttribute("aria-valuenow", String(Math.round(level * 100)));
  meter.shown.setAttribute("aria-valuetext", level < 0.05 ? "silent" : level < 0.4 ? "quiet" : "speaking");
}
