import createClient from "openapi-fetch";
import type { paths } from "./schema";

export const API = "/api/v1";

/** The typed client. Its routes and bodies come from the coordinator's OpenAPI document (`npm run types`). */
export const api = createClient<paths>({ baseUrl: "" });

/** An error response of the coordinator (RFC 9457), or a missing response (status 0). */
export class ApiError extends Error {
  readonly status: number;
  readonly detail: string;
  readonly hint: string;

  constructor(status: number, title: string, detail = "", hint = "") {
    super(title);
    this.name = "ApiError";
    this.status = status;
    this.detail = detail;
    this.hint = hint;
  }
}

/** The coordinator's error code for a request without a credential. */
const NO_SESSION = "auth.missing";
const SESSION_ENDED = "Your session has expired";

/** Return whether signing in again may help. */
export const isSessionEnded = (error: unknown): boolean =>
  error instanceof ApiError && error.status === 401 && error.message === SESSION_ENDED;

interface FetchResult<T> {
  data?: T;
  error?: unknown;
  response: Response;
}

/** Return the body of a successful response. Throws ApiError for any other. */
export async function unwrap<T>(request: Promise<FetchResult<T>>): Promise<T> {
  let answer: FetchResult<T>;
  try {
    answer = await request;
  } catch (cause) {
    if (cause instanceof TypeError) throw new ApiError(0, "The coordinator does not answer");
    throw cause;
  }
  if (answer.response.ok) return answer.data as T;
  throw toApiError(answer.response.status, answer.error);
}

function toApiError(status: number, body: unknown): ApiError {
  const fields = (typeof body === "object" && body !== null ? body : {}) as Record<string, unknown>;
  const text = (name: string) => (typeof fields[name] === "string" ? (fields[name] as string) : "");
  // The coordinator's message names a missing header, which helps programs, not users of a browser.
  if (status === 401 && text("code") === NO_SESSION) return new ApiError(status, SESSION_ENDED);
  return new ApiError(status, text("title") || `The coordinator answered ${status}`, text("detail"), text("hint"));
}
