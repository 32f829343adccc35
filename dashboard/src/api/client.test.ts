import { expect, test } from "vitest";
import { ApiError, unwrap } from "./client";

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
