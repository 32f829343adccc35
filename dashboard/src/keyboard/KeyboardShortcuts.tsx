import { Suspense, useEffect, useState } from "react";
import { navigate } from "../router";
import { Icon } from "../ui/Icon";
import { lazily } from "../ui/lazily";
import { Keys, type Act } from "./keys";
import { singles } from "./singles";

const Palette = lazily(async () => (await import("./Palette")).Palette);
const Help = lazily(async () => (await import("./Help")).Help);

type Open = "palette" | "help" | null;

/** Listens for the keys that mean the same everywhere, and shows what they open. */
export function Keyboard() {
  const [open, setOpen] = useState<Open>(null);
  useEffect(() => {
    const keys = new Keys();
    const press = (event: KeyboardEvent) => {
      const { ctrlKey: ctrl, metaKey: meta, altKey: alt, key, timeStamp: at } = event;
      const act = keys.press({ key, ctrl, meta, alt, at, taken: isTaken(event.target), singles: singles.get() });
      if (act === null || event.defaultPrevented) return;
      event.preventDefault();
      setOpen((now) => perform(act, now));
    };
    window.addEventListener("keydown", press);
    return () => window.removeEventListener("keydown", press);
  }, []);
  const close = () => setOpen(null);
  return (
    <>
      <button
        type="button"
        className="quiet-button icon-only wide-only"
        aria-label="Go to …"
        title="Go to … (Ctrl K)"
        data-testid="open-palette"
        onClick={() => setOpen("palette")}
      >
        <Icon name="search" />
      </button>
      <Suspense>
        {open === "palette" && <Palette onClose={close} onHelp={() => setOpen("help")} />}
        {open === "help" && <Help onClose={close} />}
      </Suspense>
    </>
  );
}

/** What is open afterwards. */
function perform(act: Act, open: Open): Open {
  switch (act.kind) {
    case "palette":
    case "help":
      return open !== null || document.querySelector("dialog[open]") === null ? act.kind : open;
    case "go":
      navigate(act.href);
      return null;
    case "search": {
      const field = document.querySelector<HTMLInputElement>('main input[type="search"]');
      field?.focus();
      field?.select();
      return field === null ? "palette" : null;
    }
  }
}

/** Whether a key that is pressed there belongs to what is there: a field, a list to choose from, a dialog. */
function isTaken(target: EventTarget | null): boolean {
  if (document.querySelector("dialog[open]") !== null) return true;
  if (!(target instanceof HTMLElement)) return false;
  return target.isContentEditable || target.matches('input:not([type="checkbox"], [type="radio"]), textarea, select');
}
