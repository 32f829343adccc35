import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useId, useState, type FormEvent, type ReactNode } from "react";
import { signIn } from "../api/commands";
import { Problem } from "../ui/Problem";
import { setGateClosed } from "./gate";

interface Props {
  onDone?: () => void;
  /** What else may be done instead. */
  others?: ReactNode;
}

export function SignInForm({ onDone, others }: Props) {
  const client = useQueryClient();
  const [token, setToken] = useState("");
  const field = useId();
  const entry = useMutation({
    mutationFn: () => signIn(token.trim()),
    onSuccess: async () => {
      setGateClosed(false);
      onDone?.(); // at once: what is asked anew may take seconds, and nothing behind a dialog can be used
      await client.invalidateQueries();
    },
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    entry.mutate();
  };
  return (
    <form className="form" onSubmit={submit}>
      <label htmlFor={field}>Token</label>
      <input
        id={field}
        name="token"
        type="password"
        autoComplete="off"
        spellCheck={false}
        placeholder="sho_…"
        required
        autoFocus
        value={token}
        onChange={(event) => setToken(event.target.value)}
      />
      <p className="hint">
        The operators’ token is in <code>operator.token</code> in the coordinator’s data folder;{" "}
        <code>shoal token create --role operator</code> makes another. It is exchanged for a session of this browser and
        not kept on the page.
      </p>
      {entry.error && <Problem error={entry.error} />}
      <div className="dialog-actions">
        {others}
        <button type="submit" className="button primary" disabled={entry.isPending}>
          Sign in
        </button>
      </div>
    </form>
  );
}
