/** Requests of a node: credential, protocol version, retries and errors. */

/** A refusal that repeating does not change. */
export class Refused extends Error {
  readonly status: number;
  readonly code: string;

  constructor(status: number, code: string, message: string) {
    super(message);
    this.name = "Refused";
    this.status = status;
    this.code = code;
  }
}

/** Statuses after which a request is sent again. */
const AGAIN = new Set([408, 425, 429, 500, 502, 503, 504]);
const FIRST_MS = 250;
const LONGEST_MS = 20_000;

/** Wait, or throw as soon as the signal is aborted. */
export function sleep(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const stop = () => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", stop);
      resolve();
    }, ms);
    if (signal?.aborted) stop();
    signal?.addEventListener("abort", stop, { once: true });
  });
}

export interface Call {
  body?: Uint8Array | object;
  headers?: Record<string, string>;
  signal?: AbortSignal;
}

export class Http {
  credential = "";
  readonly #url: string;
  readonly #fetch: typeof fetch;

  /** `url`: the coordinator's; "" for the server of this page. */
  constructor(url: string, fetcher: typeof fetch = (...given) => fetch(...given)) {
    this.#url = url.replace(/\/$/, "");
    this.#fetch = fetcher;
  }

  /** Send a request until it is answered. Throws `Refused`, and the signal's reason. */
  async send(method: string, path: string, call: Call = {}): Promise<Response> {
    for (let pause = FIRST_MS; ; pause = Math.min(2 * pause, LONGEST_MS)) {
      const answer = await this.#once(method, path, call);
      if (answer !== null && !AGAIN.has(answer.status)) {
        if (answer.ok) return answer;
        throw await refusal(answer);
      }
      const wanted = 1000 * Number(answer?.headers.get("retry-after") ?? 0);
      await sleep(Math.max(wanted || 0, pause * (0.5 + Math.random() / 2)), call.signal);
    }
  }

  /** Return the response, or null where none has come. */
  async #once(method: string, path: string, { body, headers = {}, signal }: Call): Promise<Response | null> {
    const isBytes = body instanceof Uint8Array;
    const sent: Record<string, string> = { "Shoal-Protocol": "1" };
    if (body !== undefined && !isBytes) sent["Content-Type"] = "application/json";
    if (this.credential !== "") sent.Authorization = `Bearer ${this.credential}`;
    const content = body === undefined || isBytes ? (body as BodyInit | undefined) : JSON.stringify(body);
    try {
      return await this.#fetch(`${this.#url}/api/v1${path}`, {
        method,
        headers: { ...sent, ...headers },
        body: content ?? null,
        signal: signal ?? null,
        cache: "no-store",
        credentials: "omit",
      });
    } catch (error) {
      if (signal?.aborted) throw signal.reason;
      if (error instanceof TypeError) return null; // fetch's error for a connection that failed
      throw error;
    }
  }
}

async function refusal(answer: Response): Promise<Refused> {
  const problem = (await answer.json().catch(() => ({}))) as { code?: string; detail?: string; title?: string };
  return new Refused(answer.status, problem.code ?? "", problem.detail ?? problem.title ?? `status ${answer.status}`);
}
