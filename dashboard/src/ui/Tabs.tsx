import type { KeyboardEvent } from "react";

interface Props<T extends string> {
  label: string;
  tabs: readonly { id: T; text: string }[];
  chosen: T;
  onChoose: (id: T) => void;
}

const STEP: Record<string, number> = { ArrowLeft: -1, ArrowRight: 1 };

/** Tabs, with arrow keys. The element that they control has the id `tab-panel`. */
export function Tabs<T extends string>({ label, tabs, chosen, onChoose }: Props<T>) {
  const walk = (event: KeyboardEvent<HTMLDivElement>) => {
    const step = STEP[event.key];
    if (step === undefined) return;
    const next = tabs[(tabs.findIndex(({ id }) => id === chosen) + step + tabs.length) % tabs.length];
    if (next === undefined) return;
    event.preventDefault();
    onChoose(next.id);
    document.getElementById(`tab-${next.id}`)?.focus();
  };
  return (
    <div className="tabs" role="tablist" aria-label={label} onKeyDown={walk}>
      {tabs.map(({ id, text }) => (
        <button
          key={id}
          type="button"
          role="tab"
          id={`tab-${id}`}
          aria-selected={id === chosen}
          aria-controls="tab-panel"
          tabIndex={id === chosen ? 0 : -1}
          onClick={() => onChoose(id)}
        >
          {text}
        </button>
      ))}
    </div>
  );
}
