import { useQueryClient } from "@tanstack/react-query";
import { queryKeys } from "../api/queryKeys";
import type { Role } from "../api/types";
import { useUnfollow } from "../live/LiveProvider";
import { SignInForm } from "./SignInForm";

/** Page that replaces all others while the coordinator requires a session. */
export function SignInPage() {
  useUnfollow();
  const had = useQueryClient().getQueryData<Role>(queryKeys.session) ?? null;
  return (
    <section className="sign-in-page">
      <h1>Sign in</h1>
      <p>
        {had === null
          ? "Sign in to see this coordinator's jobs."
          : "Your session has expired. Sign in again to continue."}
      </p>
      <SignInForm />
    </section>
  );
}
