import { expect, test } from "vitest";
import { ShortcutReader, SEQUENCE_MS, type KeyPress } from "./shortcuts";

const press = (key: string, rest: Partial<KeyPress> = {}): KeyPress => ({
  key,
  ctrl: false,
  meta: false,
  alt: false,
  handled: false,
  enabled: true,
  at: 0,
  ...rest,
});

test("g and a letter go somewhere, if the letter follows soon", () => {
  const keys = new ShortcutReader();
  expect(keys.press(press("g"))).toBeNull();
  expect(keys.press(press("n", { at: SEQUENCE_MS }))).toEqual({ kind: "go", href: "/nodes" });
  expect(keys.press(press("j", { at: SEQUENCE_MS }))).toBeNull();
  keys.press(press("g"));
  expect(keys.press(press("j", { at: SEQUENCE_MS + 1 }))).toBeNull();
  keys.press(press("g"));
  keys.press(press("x"));
  expect(keys.press(press("j"))).toBeNull();
});

test("what is written in a field means nothing else, but the palette opens from everywhere", () => {
  const keys = new ShortcutReader();
  for (const key of ["/", "?", "g", "j"]) expect(keys.press(press(key, { handled: true }))).toBeNull();
  expect(keys.press(press("k", { ctrl: true, handled: true }))).toEqual({ kind: "palette" });
  expect(keys.press(press("K", { meta: true }))).toEqual({ kind: "palette" });
  expect(keys.press(press("k", { ctrl: true, alt: true }))).toBeNull();
});

test("the browser's own shortcuts stay its own", () => {
  const keys = new ShortcutReader();
  expect(keys.press(press("/", { ctrl: true }))).toBeNull();
  keys.press(press("g"));
  expect(keys.press(press("j", { meta: true }))).toBeNull();
  expect(keys.press(press("/"))).toEqual({ kind: "search" });
  expect(keys.press(press("?"))).toEqual({ kind: "help" });
});

test("keys alone can be switched off, Ctrl K cannot", () => {
  const keys = new ShortcutReader();
  for (const key of ["/", "?", "g", "j"]) expect(keys.press(press(key, { enabled: false }))).toBeNull();
  expect(keys.press(press("j"))).toBeNull(); // the "g" before was none
  expect(keys.press(press("k", { ctrl: true, enabled: false }))).toEqual({ kind: "palette" });
});
