/** A test picture that moves, with a clock and a tone, to publish without a camera. */

const RATE = 25;

/** Draws into a canvas until it is closed. */
export class TestPicture {
  /**
   * @param {number} width
   * @param {number} height
   * @param {string} title
   * @param {boolean} isPreview it is only looked at: without a tone, and it stops in a hidden tab
   */
  constructor(width, height, title, isPreview = false) {
    const canvas = document.createElement("canvas");
    Object.assign(canvas, { width, height });
    /** @private */
    this.canvas = canvas;
    /** @private */
    this.draws = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d", { alpha: false }));
    /** @private */
    this.title = title;
    /** @private */
    this.count = 0;
    this.draw();
    /** @private */
    this.timer = setInterval(() => this.draw(), 1000 / RATE);
    this.stream = canvas.captureStream(RATE);
    /** @private */
    this.audio = isPreview ? null : new AudioContext(); // browsers give none before the user does something
    this.drawHidden();
  }

  /**
   * In a hidden tab timers come once a second, but the end of a sound comes when it is due: silent sounds, one after the
   * other, say when to draw.
   * @private
   */
  drawHidden() {
    const { audio } = this;
    if (!audio) return;
    if (document.hidden) this.draw();
    const silence = new ConstantSourceNode(audio, { offset: 0 });
    silence.connect(audio.destination);
    silence.addEventListener("ended", () => audio.state !== "closed" && this.drawHidden());
    silence.start();
    silence.stop(audio.currentTime + 1 / RATE);
  }

  /** Add a tone that beeps as each second begins. */
  addTone() {
    const { audio } = this;
    if (!audio) return;
    const tone = audio.createOscillator();
    const volume = audio.createGain();
    const out = audio.createMediaStreamDestination();
    tone.frequency.value = 880;
    volume.gain.value = 0;
    tone.connect(volume).connect(out);
    tone.start();
    /** @private */
    this.beep = () => {
      volume.gain.setTargetAtTime(0.2, audio.currentTime, 0.004);
      volume.gain.setTargetAtTime(0, audio.currentTime + 0.08, 0.01);
    };
    const [track] = out.stream.getAudioTracks();
    if (track) this.stream.addTrack(track);
  }

  close() {
    clearInterval(this.timer);
    for (const track of this.stream.getTracks()) track.stop();
    this.audio?.close().catch(() => {});
  }

  /** @private */
  draw() {
    const { canvas, draws } = this;
    const { width, height } = canvas;
    const now = new Date();
    const second = now.getMilliseconds() / 1000;
    if (this.second !== now.getSeconds()) this.beep?.();
    /** @private */
    this.second = now.getSeconds();
    this.count += 1;

    const sky = draws.createLinearGradient(0, 0, width, height);
    const hue = (now.getTime() / 200) % 360;
    sky.addColorStop(0, `hsl(${hue} 55% 22%)`);
    sky.addColorStop(1, `hsl(${hue + 70} 60% 38%)`);
    draws.fillStyle = sky;
    draws.fillRect(0, 0, width, height);

    // Bars that go up and down, as the logo's.
    const bars = 24;
    for (let bar = 0; bar < bars; bar += 1) {
      const phase = now.getTime() / 700 + bar / 2.2;
      const high = (0.12 + 0.11 * Math.sin(phase) + 0.05 * Math.sin(2.3 * phase)) * height;
      draws.fillStyle = `hsl(${hue + 180 + bar * 3} 70% 62% / 75%)`;
      draws.fillRect(((bar + 0.2) * width) / bars, height - high, (0.6 * width) / bars, high);
    }

    // A hand that goes round once a second.
    const [x, y, radius] = [width * 0.82, height * 0.36, height * 0.16];
    draws.lineWidth = height / 60;
    draws.strokeStyle = "rgb(255 255 255 / 30%)";
    draws.beginPath();
    draws.arc(x, y, radius, 0, 2 * Math.PI);
    draws.stroke();
    draws.strokeStyle = "#ffffff";
    draws.beginPath();
    draws.arc(x, y, radius, -Math.PI / 2, -Math.PI / 2 + 2 * Math.PI * second);
    draws.stroke();

    draws.fillStyle = "#ffffff";
    draws.textBaseline = "alphabetic";
    draws.font = `700 ${Math.round(height / 7)}px ui-monospace, "DejaVu Sans Mono", monospace`;
    draws.fillText(now.toISOString().slice(11, 22), width * 0.06, height * 0.42);
    draws.font = `500 ${Math.round(height / 18)}px system-ui, "DejaVu Sans", sans-serif`;
    draws.fillText(`${this.title} · picture ${this.count}`, width * 0.06, height * 0.53, width * 0.6);
  }
}
