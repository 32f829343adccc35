import { expect, test } from "vitest";
import { ApiError, isSessionEnded, unwrap } from "./client";

const answer = (status: number, rest: { data?: unknown; error?: unknown } = {}) =>
  Promise.resolve({ ...rest, response: { ok: status < 400, status } as Response });

test("a good answer is its body", async () => {
  expect(await unwrap(answer(200, { data: { jobs: [] } }))).toEqual({ jobs: [] });
});

test("a problem keeps its title, detail and hint", async () => {
  const error = { title: "No such job", detail: "There is none of that name.", hint: "list them", status: 404 };
  await expect(unwrap(answer(404, { error }))).rejects.toMatchObject({
    name: "ApiError",
    status: 404,
    message: "No such job",
    detail: "There is none of that name.",
    hint: "list them",
  });
});

test("an answer that is no problem document is named by its status", async () => {
  await expect(unwrap(answer(502, { error: "<html>" }))).rejects.toMatchObject({
    status: 502,
    message: "The coordinator answered 502",
  });
});

test("no answer at all is status 0; a fault of our own is not hidden", async () => {
  await expect(unwrap(Promise.reject(new TypeError("Failed to fetch")))).rejects.toBeInstanceOf(ApiError);
  await expect(unwrap(Promise.reject(new TypeError("Failed to fetch")))).rejects.toMatchObject({ status: 0 });
  await expect(unwrap(Promise.reject(new RangeError("ours")))).rejects.toBeInstanceOf(RangeError);
});

test("without a session it says so, and not which header a program would send; a wrong token is another thing", async () => {
  const missing = { title: "No credential", detail: "no credential", hint: "send Authorization: Bearer …", code: "auth.missing" };
  const ended = await unwrap(answer(401, { error: missing })).catch((error: unknown) => error);
  expect(ended).toMatchObject({ status: 401, message: "Your session has expired", detail: "", hint: "" });
  expect(isSessionEnded(ended)).toBe(true);
  const wrong = { title: "Refused", detail: "this token cannot sign in", code: "auth.refused" };
  const refused = await unwrap(answer(401, { error: wrong })).catch((error: unknown) => error);
  expect(refused).toMatchObject({ detail: "this token cannot sign in" });
  expect(isSessionEnded(refused)).toBe(false);
});
