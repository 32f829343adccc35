import createClient from "openapi-fetch";
import type { paths } from "./schema";

export const API = "/api/v1";

/** The typed client; its routes and bodies come from the coordinator's OpenAPI document (`npm run types`). */
export const api = createClient<paths>({ baseUrl: "" });

/** A refusal of the coordinator (RFC 9457), or no answer at all (status 0). */
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

/** The coordinator's code for a request without a credential. */
const NO_SESSION = "auth.missing";
const ENDED = "Your session has ended";

/** Whether it helps to sign in again. */
export const isSessionEnded = (error: unknown): boolean =>
  error instanceof ApiError && error.status === 401 && error.message === ENDED;

interface Answer<T> {
  data?: T;
  error?: unknown;
  response: Response;
}

/** The body of a good answer; throws ApiError for every other one. */
export async function unwrap<T>(request: Promise<Answer<T>>): Promise<T> {
  let answer: Answer<T>;
  try {
    answer = await request;
  } catch (cause) {
    if (cause instanceof TypeError) throw new ApiError(0, "The coordinator does not answer");
    throw cause;
  }
  if (answer.response.ok) return answer.data as T;
  throw problem(answer.response.status, answer.error);
}

function problem(status: number, body: unknown): ApiError {
  const fields = (typeof body === "object" && body !== null ? body : {}) as Record<string, unknown>;
  const text = (name: string) => (typeof fields[name] === "string" ? (fields[name] as string) : "");
  // To programs the coordinator says which header they lack; a browser had a session, or has none yet.
  if (status === 401 && text("code") === NO_SESSION) return new ApiError(status, ENDED);
  return new ApiError(status, text("title") || `The coordinator answered ${status}`, text("detail"), text("hint"));
}
