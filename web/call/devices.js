/** Which microphone and which speaker: the choice, remembered, and kept up to date as devices come and go. */

import { recall, remember } from "../storage.js";
import { element } from "./dom.js";

/** @typedef {{field: HTMLElement, select: HTMLSelectElement}} Choice */

export class Devices {
  /**
   * @param {{microphone: Choice, speaker: Choice, hint: HTMLElement}} places
   * @param {HTMLAudioElement} audio plays the agent's voice
   * @param {{microphone: (id: string | null) => void, speakerFailed: () => void}} on
   */
  constructor(places, audio, on) {
    this.places = places;
    this.audio = audio;
    this.on = on;
    this.microphoneId = recall("microphone");
    this.speakerId = recall("speaker");
    const hasSpeakers = "setSinkId" in audio;
    places.speaker.field.hidden = !hasSpeakers;
    places.microphone.select.addEventListener("change", () => {
      this.microphoneId = places.microphone.select.value || null;
      remember("microphone", this.microphoneId ?? "");
      on.microphone(this.microphoneId);
    });
    places.speaker.select.addEventListener("change", () => this.useSpeaker(places.speaker.select.value || null));
    navigator.mediaDevices?.addEventListener("devicechange", () => this.refresh());
    this.refresh();
  }

  /** Names are told only once the microphone was allowed: ask again then. */
  async refresh() {
    const known = (await navigator.mediaDevices?.enumerateDevices().catch(() => [])) ?? [];
    const microphones = named(known, "audioinput");
    const speakers = named(known, "audiooutput");
    fill(this.places.microphone.select, "Default microphone", microphones, this.microphoneId);
    fill(this.places.speaker.select, "Default speaker", speakers, this.speakerId);
    this.places.hint.hidden = microphones.length > 0;
  }

  /** @param {string | null} id null is the default */
  async useSpeaker(id) {
    try {
      await this.audio.setSinkId(id ?? "");
      this.speakerId = id;
      remember("speaker", id ?? "");
    } catch {
      this.on.speakerFailed();
      this.refresh();
    }
  }

  /** The speaker that was chosen in an earlier call, if it is still there. */
  async restoreSpeaker() {
    if (this.speakerId && "setSinkId" in this.audio) await this.audio.setSinkId(this.speakerId).catch(() => {});
  }
}

/** @param {MediaDeviceInfo[]} devices @param {MediaDeviceKind} kind */
function named(devices, kind) {
  return devices.filter(({ kind: own, deviceId, label }) => own === kind && label && !["", "default"].includes(deviceId));
}

/** @param {HTMLSelectElement} select @param {string} first @param {MediaDeviceInfo[]} devices @param {string | null} chosen */
function fill(select, first, devices, chosen) {
  const options = devices.map(({ deviceId, label }) => element("option", { value: deviceId }, label));
  select.replaceChildren(element("option", { value: "" }, first), ...options);
  select.value = devices.some(({ deviceId }) => deviceId === chosen) ? (chosen ?? "") : "";
}
