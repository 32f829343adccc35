import { useEffect, useId, useLayoutEffect, useRef, useState, type ReactNode } from "react";
import { TERMS, type TermName } from "./terms";

interface Props {
  /** The term in the glossary. */
  of: TermName;
  className?: string;
  onClick?: () => void;
  children: ReactNode;
}

/** A term whose explanation appears while it is pointed at or has the focus; Escape hides it. */
export function Term({ of, className = "", onClick, children }: Props) {
  const [isOpen, setIsOpen] = useState(false);
  const term = useRef<HTMLButtonElement>(null);
  const id = useId();
  const hide = () => setIsOpen(false);
  return (
    <span onPointerEnter={() => setIsOpen(true)} onPointerLeave={hide}>
      <button
        ref={term}
        type="button"
        className={`term ${className}`}
        aria-describedby={isOpen ? id : undefined}
        onFocus={() => setIsOpen(true)}
        onBlur={hide}
        onClick={onClick}
      >
        {children}
      </button>
      {isOpen && <Explanation id={id} term={term} text={TERMS[of]} onHide={hide} />}
    </span>
  );
}

interface ExplanationProps {
  id: string;
  term: { readonly current: HTMLElement | null };
  text: string;
  onHide: () => void;
}

/** Space to the edges of the screen (px). */
const MARGIN = 8;

/** Tooltip in the browser's top layer, so that no box that scrolls cuts it off. */
function Explanation({ id, term, text, onHide }: ExplanationProps) {
  const tip = useRef<HTMLSpanElement>(null);
  useLayoutEffect(() => {
    if (tip.current === null || term.current === null) return;
    tip.current.showPopover();
    place(tip.current, term.current.getBoundingClientRect());
  }, [term]);
  useEffect(() => {
    const press = (event: KeyboardEvent) => {
      if (event.key !== "Escape") return;
      event.preventDefault(); // else a dialog around the term closes too
      onHide();
    };
    window.addEventListener("keydown", press);
    window.addEventListener("scroll", onHide, true);
    return () => {
      window.removeEventListener("keydown", press);
      window.removeEventListener("scroll", onHide, true);
    };
  });
  return (
    <span ref={tip} id={id} role="tooltip" popover="manual" className="tip">
      {text}
    </span>
  );
}

/** Move a tooltip below its term, or above it at the bottom of the screen. */
function place(tip: HTMLElement, term: DOMRect): void {
  const { width, height } = tip.getBoundingClientRect();
  const left = Math.min(term.left, document.documentElement.clientWidth - width - MARGIN);
  const isLow = term.bottom + height + MARGIN > window.innerHeight;
  tip.style.left = `${Math.max(MARGIN, left)}px`;
  tip.style.top = `${isLow ? term.top - height : term.bottom}px`;
}
