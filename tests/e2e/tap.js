// Put into every page before its own scripts: writes down what its connection gets, and keeps its microphones.
// The page knows nothing of it. Times are performance.now().
(() => {
  const blocks = [];
  const tap = (window.tap = { events: [], microphones: [], connections: [], take, sounded });

  async function listen(track) {
    const { readable } = new MediaStreamTrackProcessor({ track, maxBufferSize: 6_000 });
    const reader = readable.getReader();
    for (;;) {
      const { done, value: sound } = await reader.read();
      if (done) return;
      const frames = new Float32Array(sound.numberOfFrames);
      sound.copyTo(frames, { planeIndex: 0, format: "f32-planar" });
      blocks.push({ at: performance.now(), rate: sound.sampleRate, frames });
      sound.close();
    }
  }

  /** Frames follow each other without gaps: the one that was written down least late tells when all of them came. */
  function take() {
    const rate = blocks[0]?.rate ?? 48_000;
    let length = 0;
    let begin = Infinity;
    for (const { at, frames } of blocks) {
      length += frames.length;
      begin = Math.min(begin, at - (length / rate) * 1000);
    }
    const pcm = new Uint8Array(length * 2);
    const samples = new Int16Array(pcm.buffer);
    let position = 0;
    for (const { frames } of blocks) {
      for (const frame of frames) samples[position++] = Math.max(-1, Math.min(1, frame)) * 32_767;
    }
    return { pcm: pcm.toBase64(), rate, begin_ms: length ? begin : 0 };
  }

  /** How much of what arrived was not silence, in milliseconds. */
  function sounded() {
    const loud = blocks.filter(({ frames }) => frames.some((frame) => Math.abs(frame) > 0.01));
    return loud.reduce((ms, { rate, frames }) => ms + (frames.length / rate) * 1000, 0);
  }

  const { createDataChannel, addTrack } = RTCPeerConnection.prototype;
  RTCPeerConnection.prototype.createDataChannel = function (...given) {
    const channel = createDataChannel.apply(this, given);
    tap.connections.push(this);
    this.addEventListener("track", ({ track }) => listen(track));
    channel.addEventListener("message", ({ data }) => tap.events.push({ ...JSON.parse(data), at_ms: performance.now() }));
    return channel;
  };
  RTCPeerConnection.prototype.addTrack = function (track, ...streams) {
    tap.microphones.push(track);
    return addTrack.call(this, track, ...streams);
  };
  const { replaceTrack } = RTCRtpSender.prototype;
  RTCRtpSender.prototype.replaceTrack = function (track) {
    tap.microphones.push(track);
    return replaceTrack.call(this, track);
  };
})();
