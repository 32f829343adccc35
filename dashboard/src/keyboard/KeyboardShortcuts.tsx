import { Suspense, useEffect, useState } from "react";
import { navigate } from "../router/router";
import { Icon } from "../ui/Icon";
import { lazyComponent } from "../ui/lazyComponent";
import { ShortcutReader, type ShortcutAction } from "./shortcuts";
import { shortcutSetting } from "./shortcutSetting";

const CommandPalette = lazyComponent(async () => (await import("./CommandPalette")).CommandPalette);
const ShortcutsDialog = lazyComponent(async () => (await import("./ShortcutsDialog")).ShortcutsDialog);

type Open = "palette" | "help" | null;

/** Handler of the global shortcuts, with the dialogs that they open. */
export function KeyboardShortcuts() {
  const [open, setOpen] = useState<Open>(null);
  useEffect(() => {
    const keys = new ShortcutReader();
    const press = (event: KeyboardEvent) => {
      const { ctrlKey: ctrl, metaKey: meta, altKey: alt, key, timeStamp: at } = event;
      const act = keys.press({ key, ctrl, meta, alt, at, handled: isHandledElsewhere(event.target), enabled: shortcutSetting.get() });
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
        aria-label="Go to…"
        title="Go to… (Ctrl K)"
        data-testid="open-palette"
        onClick={() => setOpen("palette")}
      >
        <Icon name="search" />
      </button>
      <Suspense>
        {open === "palette" && <CommandPalette onClose={close} onHelp={() => setOpen("help")} />}
        {open === "help" && <ShortcutsDialog onClose={close} />}
      </Suspense>
    </>
  );
}

/** Perform an action and return the dialog that is open afterwards. */
function perform(act: ShortcutAction, open: Open): Open {
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

/** Return whether the focused element handles keys itself: an input field, a select or a dialog. */
function isHandledElsewhere(target: EventTarget | null): boolean {
  if (document.querySelector("dialog[open]") !== null) return true;
  if (!(target instanceof HTMLElement)) return false;
  return target.isContentEditable || target.matches('input:not([type="checkbox"], [type="radio"]), textarea, select');
}
