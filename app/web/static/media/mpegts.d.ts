// The part of mpegts.js that ts.js uses. Its names are global here, and exist for the type checker only.

declare namespace Mpegts {
  interface Player {
    attachMediaElement(element: HTMLMediaElement): void;
    load(): void;
    destroy(): void;
    on(event: string, listener: (...values: any[]) => void): void;
  }

  class BaseLoader {
    constructor(type: string);
    _status: number;
    _onDataArrival: ((chunk: ArrayBuffer, byteStart: number, receivedLength: number) => void) | null;
    get needStashBuffer(): boolean;
    open(): void;
    abort(): void;
  }

  interface Library {
    BaseLoader: typeof BaseLoader;
    LoaderStatus: Record<"kBuffering" | "kComplete", number>;
    Events: Record<"MEDIA_INFO" | "ERROR", string>;
    ErrorTypes: Record<"MEDIA_ERROR", string>;
    LoggingControl: { enableAll: boolean };
    isSupported(): boolean;
    createPlayer(source: object, config: object): Player;
  }
}
