import { expect, it } from "vitest";
import { job } from "../test/factories";
import { filterJobs } from "./filterJobs";

const JOBS = [
  job({ name: "digits-2", algorithm: "fedavg", tags: ["base line", "x"] }),
  job({ name: "digits", algorithm: "fedprox", tags: ["x"] }),
  job({ name: "tumours", title: "Two Clinics", algorithm: "fedavg" }),
];

const ANY = { tag: "", state: "", algorithm: "" };
const names = (words: string, tag = "", more = {}) => filterJobs(JOBS, words, { ...ANY, tag, ...more }).map(({ name }) => name);

it("finds by every word, wherever it stands", () => {
  expect(names("")).toHaveLength(3);
  expect(names("fedavg DIG")).toEqual(["digits-2"]);
  expect(names("clinics")).toEqual(["tumours"]);
  expect(names("line digits")).toEqual(["digits-2"]);
  expect(names("nothing")).toEqual([]);
});

it("finds by a whole tag", () => {
  expect(names("", "x")).toEqual(["digits-2", "digits"]);
  expect(names("prox", "x")).toEqual(["digits"]);
  expect(names("", "base")).toEqual([]);
});

it("finds by state and algorithm", () => {
  expect(names("", "", { algorithm: "fedavg" })).toEqual(["digits-2", "tumours"]);
  expect(names("digits", "", { algorithm: "fedavg" })).toEqual(["digits-2"]);
  expect(names("", "", { state: "done" })).toEqual([]);
  expect(names("", "", { state: "running" })).toHaveLength(3);
});
