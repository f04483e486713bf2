/** Opening the microphone, and knowing what became of it. */

import { microphoneFailure } from "./messages.js";

export class NoMicrophone extends Error {
  /** @param {string} code one of messages.js */
  constructor(code) {
    super(code);
    this.code = code;
  }
}

/** Why no call can be made from here at all, or null. @returns {string | null} */
export function whyNoCalls() {
  if (!window.isSecureContext) return "insecure_context";
  if (!navigator.mediaDevices?.getUserMedia || !window.RTCPeerConnection) return "not_supported";
  return null;
}

/**
 * @param {string | null} deviceId the one chosen; if it is gone, any
 * @param {boolean} raw without the browser's own processing (for tests: it changes what is heard)
 * @returns {Promise<MediaStreamTrack>}
 * @throws {NoMicrophone}
 */
export async function openMicrophone(deviceId, raw) {
  const processed = { echoCancellation: !raw, noiseSuppression: !raw, autoGainControl: !raw };
  const wanted = deviceId ? { ...processed, deviceId: { exact: deviceId } } : processed;
  try {
    return await openTrack(wanted);
  } catch (error) {
    const gone = error instanceof Error && ["OverconstrainedError", "NotFoundError"].includes(error.name);
    if (deviceId && gone) return openMicrophone(null, raw);
    throw new NoMicrophone(microphoneFailure(error));
  }
}

/** @param {MediaTrackConstraints} audio */
async function openTrack(audio) {
  const stream = await navigator.mediaDevices.getUserMedia({ audio });
  return stream.getAudioTracks()[0];
}

/** Keep a phone's screen on until `signal`: a locked phone takes the microphone away. @param {AbortSignal} signal */
export function keepAwake(signal) {
  if (!("wakeLock" in navigator)) return;
  /** @type {WakeLockSentinel | null} */
  let lock = null;
  const take = async () => {
    if (document.visibilityState !== "visible" || signal.aborted) return;
    lock = await navigator.wakeLock.request("screen").catch(() => null);
    if (signal.aborted) await lock?.release();
  };
  document.addEventListener("visibilitychange", take, { signal });
  signal.addEventListener("abort", () => lock?.release(), { once: true });
  take();
}
